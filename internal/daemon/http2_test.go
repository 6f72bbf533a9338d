package daemon

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
)

// A framed is a connection that speaks cleartext HTTP/2, frame by frame (RFC 9113,
// section 4.1).
type framed struct {
	*testing.T
	net.Conn
}

// Frame types.
const (
	frameSettings = 4
	frameGoAway   = 7
	frameWindow   = 8
)

// preface is the client's connection preface, with an empty SETTINGS frame.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func (d *running) dialHTTP2() *framed {
	d.Helper()
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(d, err)
	d.Cleanup(func() { conn.Close() })
	require.NoError(d, conn.SetDeadline(time.Now().Add(aMinute)))
	_, err = io.WriteString(conn, preface)
	require.NoError(d, err)
	return &framed{d.T, conn}
}

// next returns the payload of the next frame of the type.
func (f *framed) next(kind byte) []byte {
	f.Helper()
	for {
		var head [9]byte
		_, err := io.ReadFull(f, head[:])
		require.NoError(f, err)
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		_, err = io.ReadFull(f, payload)
		require.NoError(f, err)
		if head[3] == kind {
			return payload
		}
	}
}

func cleartext(c *config.Config) { c.HTTP2.Cleartext = true }

// The first SETTINGS frame tells the client the limits of a connection.
func TestHTTP2SettingsHaveTheBounds(t *testing.T) {
	f := start(t, cleartext).dialHTTP2()
	settings := make(map[uint16]uint32)
	for said := f.next(frameSettings); len(said) > 0; said = said[6:] {
		settings[binary.BigEndian.Uint16(said)] = binary.BigEndian.Uint32(said[2:])
	}
	const maxConcurrentStreams, initialWindow, maxFrameSize, maxHeaderListSize = 3, 4, 5, 6
	require.EqualValues(t, maxStreams, settings[maxConcurrentStreams])
	require.EqualValues(t, streamWindow, settings[initialWindow])
	require.EqualValues(t, maxFrameBytes, settings[maxFrameSize])
	require.LessOrEqual(t, settings[maxHeaderListSize], uint32(maxHeadBytes))
	require.Positive(t, settings[maxHeaderListSize])
	const beganWith = 1<<16 - 1
	require.EqualValues(t, connectionWindow, binary.BigEndian.Uint32(f.next(frameWindow))+beganWith)
}

// An idle connection gets GOAWAY and does not delay the drain.
func TestADrainSendsGoAway(t *testing.T) {
	t.Parallel()
	d := start(t, func(c *config.Config) { c.HTTP2.Cleartext, c.DrainWindow = true, surely })
	f := d.dialHTTP2()
	f.next(frameSettings)
	require.NoError(t, d.wait())
	goAway := f.next(frameGoAway)
	require.Zero(t, binary.BigEndian.Uint32(goAway[4:]), "no error")
	require.Empty(t, d.logged.FilterMessageSnippet("cutting off").All())
}

// wantCutOff waits until the daemon has closed the connection.
func wantCutOff(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(surely)))
	_, err := io.Copy(io.Discard, conn)
	var late net.Error
	require.False(t, errors.As(err, &late) && late.Timeout(), "it is open still")
}

// A client connects and sends nothing, or half of its preface.
func TestAnHTTP2ConnectionWithoutPrefaceIsClosed(t *testing.T) {
	soon := func(d *Daemon) {
		require.Equal(t, headTimeout, d.servers.public.ReadHeaderTimeout)
		d.servers.public.ReadHeaderTimeout = 50 * time.Millisecond
	}
	pair := certtest.New(t)
	secured := startWith(t, func(c *config.Config) { c.TLS = config.TLS{Cert: pair.Cert, Key: pair.Key} }, soon)
	clear := startWith(t, cleartext, soon)
	for _, d := range []*running{secured, clear} {
		for _, begin := range []string{"", preface[:14], "\x16\x03\x01"} {
			conn, err := net.Dial("tcp", d.PublicAddr())
			require.NoError(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, begin)
			require.NoError(t, err)
			wantCutOff(t, conn)
		}
	}
}

// A client that has vanished answers no ping. Its poll ends with its connection.
func TestAnHTTP2PingTimesOut(t *testing.T) {
	t.Parallel()
	d := startWith(t, cleartext, func(d *Daemon) {
		require.Equal(t, pingAfter, d.servers.public.HTTP2.SendPingTimeout)
		require.Equal(t, pingTimeout, d.servers.public.HTTP2.PingTimeout)
		d.servers.public.HTTP2.SendPingTimeout, d.servers.public.HTTP2.PingTimeout = time.Second, time.Second
	})
	const (
		frameHeaders       = 1
		endsStream, isHead = 0x1, 0x4
	)
	path := "/v1/poll?topic=a&mode=stream"
	head := append([]byte{0x82, 0x86, 0x04, byte(len(path))}, path...) // GET, http, and the path (RFC 7541)
	head = append(head, 0x01, 1, 'h')                                  // the authority
	for _, flags := range []byte{endsStream | isHead, endsStream} {    // a whole head, and an unfinished one
		f := d.dialHTTP2()
		_, err := f.Write(append([]byte{0, 0, byte(len(head)), frameHeaders, flags, 0, 0, 0, 1}, head...))
		require.NoError(t, err)
		wantCutOff(t, f)
		d.wantMetric(`pubsubd_polls_total{outcome="gone",transport="stream"}`, 1)
		d.waitParked(0)
	}
}

func TestALargeHeadIsRefusedInEveryProtocol(t *testing.T) {
	t.Parallel()
	eachTongue(t, nil, func(s *spoken) {
		req, err := http.NewRequest(http.MethodGet, s.base+"/v1/topics", nil)
		require.NoError(s, err)
		req.Header.Set("X-Large", strings.Repeat("x", maxHeadBytes))
		resp, err := s.speaker.Do(req)
		if err != nil { // an HTTP/2 client knows the limit and need not send the request
			require.True(s, s.h2, err)
			return
		}
		resp.Body.Close()
		require.Equal(s, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
	})
}

func TestCleartextHTTP2NeedsASetting(t *testing.T) {
	d := start(t, nil)
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(surely)))
	_, err = io.WriteString(conn, preface)
	require.NoError(t, err)
	answer, _ := io.ReadAll(conn)
	require.True(t, strings.HasPrefix(string(answer), "HTTP/1.1 "), "%q", answer)
}

// Cleartext HTTP/2 does not change HTTP/1.1: the lane still serves it.
func TestTheLaneWorksWithCleartextHTTP2(t *testing.T) {
	d := start(t, cleartext)
	poll := d.dial("/poll?ack=0")
	d.waitParked(1)
	d.post("/v1/topics/a/messages", `"m1"`)
	require.Contains(t, poll.line(), "m1")
	poll.send("/poll?ack=1")
	d.waitParked(1)
	require.GreaterOrEqual(t, d.metric("pubsubd_lane_connections"), 1.0)
	d.dialHTTP2().next(frameSettings)
	_, err := io.WriteString(poll.conn, "GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\n")
	require.NoError(t, err)
	d.post("/v1/topics/a/messages", `"m2"`)
	require.Contains(t, poll.line(), "m2")
	require.Contains(t, poll.line(), `{"topics":[`, "the connection went back to net/http")
}

// Requests beyond the streams of one connection use other connections.
func TestMoreRequestsThanStreamsAreAllServed(t *testing.T) {
	t.Parallel()
	eachTongue(t, nil, func(s *spoken) {
		const polls = maxStreams + 20
		var answers []<-chan string
		from := "a@" + s.epoch() + ":0"
		for range polls {
			answers = append(answers, s.later("/v1/poll?topic="+from))
		}
		s.waitParked(polls)
		s.publish("a", `"m1"`)
		for _, answer := range answers {
			require.Contains(s, <-answer, "m1")
		}
	})
}
