package lane

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// laneForOutputs returns a lane with only the parts that outputs need.
func laneForOutputs() *Lane {
	m := metrics.New("test")
	account := memory.New(1<<30, nil, m)
	return &Lane{cfg: Config{Metrics: m, Origins: cors.New(nil, zap.NewNop()), Hosts: everyHost(), Polls: transport.New(transport.Config{}, wire.Limits{}, account, m, nil)}}
}

// nobody is an owner of unread bytes without an address.
type nobody struct{}

func (nobody) Client() *memory.Client { return nil }
func (nobody) CutOff()                {}

// A client reads part of an answer that did not fit. The next answer follows the rest of
// it, although the socket has space now. The backlog does not use memory of later answers.
func TestTheBacklogComesFirst(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	defer closeFD(pair[0])
	defer closeFD(pair[1])
	o := &output{lane: laneForOutputs(), owner: nobody{}, fd: pair[0]}

	var want, got []byte
	for !o.Blocked() {
		s := scratches.Get().(*scratch)
		s.bytes = append(s.bytes, bytes.Repeat([]byte{byte(len(want))}, 30_001)...)
		want = append(want, s.bytes...)
		require.NoError(t, o.writeScratch(s))
		s.free()
	}
	for range 16 { // answers to other clients
		s := scratches.Get().(*scratch)
		s.bytes = append(s.bytes, bytes.Repeat([]byte("x"), 30_001)...)
		defer s.free()
	}
	got = appendAll(t, got, pair[1])
	require.NoError(t, o.write(part{bytes: []byte("next")}))
	want = append(want, "next"...)
	for o.Blocked() {
		o.flush()
		got = appendAll(t, got, pair[1])
	}
	require.False(t, o.failed)
	require.True(t, bytes.Equal(want, got))
}

// An answer in gzip is put together in memory that the next answer reuses. The client gets
// it whole, even if it has read nothing, or a part, by then.
func TestAnAnswerInGzipInTheBacklogIsWhole(t *testing.T) {
	for name, before := range map[string]int{"all of it is kept": 4 << 20, "a part of it is kept": 0} {
		t.Run(name, func(t *testing.T) {
			pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
			require.NoError(t, err)
			defer closeFD(pair[0])
			defer closeFD(pair[1])
			l := laneForOutputs()
			l.heads.Store(makeHeads(time.Now(), l.cfg.Origins))
			o := &output{lane: l, owner: nobody{}, fd: pair[0], gzip: true}

			require.NoError(t, o.write(part{bytes: bytes.Repeat([]byte("x"), before)}))
			require.Equal(t, before > 0, o.Blocked())
			lead, want := []byte("{}\n"), "{}\n"
			var frames []*frame.Frame
			for i := range 24 { // every second one is stored, and too large to copy
				kind, data := "text/plain", bytes.Repeat([]byte{'a' + byte(i%26)}, 2000)
				if i%2 == 0 {
					kind, data = "image/png", make([]byte, 90_000)
					_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(data)
				}
				f := frame.New(&wire.Message{Type: kind, Data: data}, time.Time{}, 0, nil)
				frames, want = append(frames, f), want+string(f.Bytes(frame.NDJSON))
			}
			_, err = o.Whole(lead, frames)
			require.NoError(t, err)
			require.True(t, o.Blocked())
			for range 8 { // answers to other clients
				frame.TakeGzipMember(frame.NDJSON, 1, []byte("others'\n"), frames[:8]).Release()
			}

			var got []byte
			for got = appendAll(t, got, pair[1]); o.Blocked(); got = appendAll(t, got, pair[1]) {
				o.flush()
			}
			resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(got[before:])), nil)
			require.NoError(t, err)
			defer resp.Body.Close()
			require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
			r, err := gzip.NewReader(resp.Body)
			require.NoError(t, err)
			r.Multistream(false)
			text, err := io.ReadAll(r)
			require.NoError(t, err)
			require.True(t, want == string(text))
		})
	}
}

// A frame that is sent deflated keeps no WebSocket message that is not deflated.
func TestADeflatedFrameIsNotKeptPlain(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	defer closeFD(pair[0])
	defer closeFD(pair[1])
	l := laneForOutputs()
	account := l.cfg.Polls.Memory()
	o := &output{lane: l, owner: nobody{}, fd: pair[0], bare: true, deflates: true, format: frame.SocketText}
	f := frame.New(&wire.Message{Data: fmt.Appendf(nil, `"%08000d"`, 1)}, time.Time{}, 0, account)
	n, err := o.Send(nil, []*frame.Frame{f})
	require.NoError(t, err)
	require.Equal(t, len(f.Bytes(frame.NDJSON)), n)
	require.Less(t, len(appendAll(t, nil, pair[1])), n/10)
	require.Less(t, account.Of(memory.Encodings), int64(n+n/10))
}

// A client does not read an answer of a thousand frames. The backlog refers to the frames
// and has no copy. It counts all bytes until the client has read them or left.
func TestAnUnreadAnswerKeepsReferences(t *testing.T) {
	l := laneForOutputs()
	l.heads.Store(makeHeads(time.Now(), l.cfg.Origins))
	frames, length := make([]*frame.Frame, 1000), 0
	for i := range frames {
		frames[i] = frame.New(&wire.Message{Data: fmt.Appendf(nil, `"message %d %0100d"`, i, i)}, time.Time{}, 0, l.cfg.Polls.Memory())
		length += len(frames[i].Bytes(frame.NDJSON))
	}
	newOutput := func(o output) (*output, int) {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		t.Cleanup(func() {
			closeFD(pair[0])
			closeFD(pair[1])
		})
		require.NoError(t, syscall.SetsockoptInt(pair[0], syscall.SOL_SOCKET, syscall.SO_SNDBUF, 4<<10))
		o.lane, o.owner, o.fd = l, nobody{}, pair[0]
		return &o, pair[1]
	}
	for name, o := range map[string]output{"a poll": {}, "a stream": {chunked: true}, "a connection with frames only": {bare: true}} {
		t.Run(name, func(t *testing.T) {
			answer := func(o *output) (err error) {
				if o.chunked || o.bare {
					_, err = o.Send([]byte("{}\n"), frames)
				} else {
					_, err = o.Whole([]byte("{}\n"), frames)
				}
				return err
			}
			reading, client := newOutput(o)
			require.NoError(t, answer(reading))
			require.True(t, reading.Blocked())
			require.Greater(t, reading.backlog.shared, length/2)
			require.Greater(t, l.cfg.Polls.Memory().Of(memory.Queued), int64(length/2), "frames that wait are pinned")
			var got []byte
			for got = appendAll(t, got, client); reading.Blocked(); got = appendAll(t, got, client) {
				w, waited := reading.backlog, reading.backlog.shared+reading.backlog.own
				reading.flush()
				require.Less(t, w.shared+w.own, waited)
				require.Equal(t, !reading.Blocked(), w.shared+w.own == 0)
			}
			require.False(t, reading.failed)
			require.Zero(t, l.cfg.Polls.Memory().Of(memory.Queued))
			require.Contains(t, string(got), string(frames[0].Bytes(frame.NDJSON)))
			require.Contains(t, string(got), string(frames[999].Bytes(frame.NDJSON)))
			require.GreaterOrEqual(t, len(got), length)

			const outputs = 50
			var stuck [outputs]*output
			for i := range stuck {
				stuck[i], _ = newOutput(o)
			}
			before := liveHeap()
			for _, o := range stuck {
				require.NoError(t, answer(o))
				require.True(t, o.Blocked())
			}
			each := (liveHeap() - before) / outputs
			require.Less(t, each, int64(24<<10), "bytes that one unread answer of %d keeps", length)
			for _, o := range stuck {
				w := o.backlog
				require.Less(t, int64(w.own), int64(24<<10))
				require.Positive(t, l.cfg.Polls.Memory().Of(memory.Unread))
				o.dropBacklog()
				require.Zero(t, w.own+w.shared)
			}
			require.Zero(t, l.cfg.Polls.Memory().Of(memory.Queued))
		})
	}
}

func liveHeap() int64 {
	for range 2 { // the second empties the pools
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// appendAll appends the bytes that can be read from fd now.
func appendAll(t *testing.T, dst []byte, fd int) []byte {
	t.Helper()
	var b [4096]byte
	for {
		n, errno := rawRead(fd, b[:])
		if errno == syscall.EAGAIN {
			return dst
		}
		require.Zero(t, errno)
		dst = append(dst, b[:n]...)
	}
}
