package pubsub

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A capture is a connection of which the test has what was written.
type capture struct {
	io.Reader
	bytes.Buffer
	closed bool
}

func (c *capture) Read(p []byte) (int, error) { return c.Reader.Read(p) }
func (c *capture) Close() error               { c.closed = true; return nil }

// readWebSocket reads what a daemon sent, and returns what was answered as well.
func readWebSocket(sent []byte) (text []byte, answered []byte, err error) {
	conn := &capture{Reader: iotest.HalfReader(bytes.NewReader(sent))}
	r := &webSocketReader{link: &webSocket{conn: conn}, conn: bufio.NewReader(conn), kind: ws.OpText}
	text, err = io.ReadAll(r)
	return text, conn.Bytes(), err
}

func frame(code ws.OpCode, fin bool, payload string) []byte {
	return bytes.Clone(ws.MustCompileFrame(ws.NewFrame(code, fin, []byte(payload))))
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestMessagesMayComeInPartsWithPingsBetween(t *testing.T) {
	text, answered, err := readWebSocket(join(
		frame(ws.OpText, true, "one\n"),
		frame(ws.OpText, false, "t"), frame(ws.OpPing, true, "there?"), frame(ws.OpContinuation, false, ""), frame(ws.OpContinuation, true, "wo\n"),
		frame(ws.OpPong, true, "unasked"),
		frame(ws.OpText, true, ""),
		frame(ws.OpText, true, strings.Repeat("x", 70_000)),
		frame(ws.OpClose, true, "\x03\xe9"),
		frame(ws.OpText, true, "after the end"),
	))
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n"+strings.Repeat("x", 70_000), string(text))

	code, payload, err := readMasked(bytes.NewReader(answered))
	require.NoError(t, err)
	require.Equal(t, ws.OpPong, code)
	require.Equal(t, "there?", string(payload))
}

func TestWhatNoWebSocketServerSends(t *testing.T) {
	for name, sent := range map[string][]byte{
		"a mask":                 ws.MustCompileFrame(ws.MaskFrame(ws.NewTextFrame([]byte("x")))),
		"a reserved kind":        {0x83, 0},
		"a reserved bit":         {0xc1, 0},
		"a part of nothing":      frame(ws.OpContinuation, true, "x"),
		"a message in another":   join(frame(ws.OpText, false, "x"), frame(ws.OpText, true, "y")),
		"half of a ping":         frame(ws.OpPing, false, "x"),
		"a long ping":            {0x89, 126, 1, 0},
		"a length beyond all":    {0x81, 127, 0xff, 0, 0, 0, 0, 0, 0, 0},
		"what was not asked for": frame(ws.OpBinary, true, "x"),
	} {
		text, _, err := readWebSocket(sent)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, io.ErrUnexpectedEOF, name)
		require.LessOrEqual(t, len(text), 1, name)
		require.True(t, isForeign(whyUnreadable(t.Context(), 0, err)), name)
	}
}

func TestAWebSocketCutAtAnyByteIsCutOff(t *testing.T) {
	sent := join(frame(ws.OpText, true, "one\n"), frame(ws.OpPing, true, "there?"), frame(ws.OpText, true, strings.Repeat("x", 200)))
	for at := range len(sent) {
		text, _, err := readWebSocket(sent[:at])
		if err == nil {
			require.Contains(t, []int{0, 1, 6, 7, 14, 15, 16, 17}, at, "between two, or in a head") // RFC 6455's heads are 2 and 4 bytes
			continue
		}
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "at %d: %q", at, text)
	}
}

// A pong that cannot be written is the connection's fault, not another language.
func TestAPongThatCannotBeWrittenIsACut(t *testing.T) {
	near, far := net.Pipe()
	far.Close()
	r := &webSocketReader{link: &webSocket{conn: near}, conn: bufio.NewReader(bytes.NewReader(frame(ws.OpPing, true, ""))), kind: ws.OpText}
	_, err := r.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.True(t, isTransient(whyUnreadable(t.Context(), 0, err)))
}

// A length is believed only as far as bytes come.
func TestAMessageWithoutEndIsBounded(t *testing.T) {
	head := []byte{0x81, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	conn := &capture{Reader: io.MultiReader(bytes.NewReader(head), &endless{text: strings.Repeat("x", 4096)})}
	_, err := (&webSocket{conn: conn}).decoder(conn).Next()
	require.ErrorContains(t, err, "longer than")
}

func FuzzWebSocketReader(f *testing.F) {
	f.Add(join(frame(ws.OpText, false, "{"), frame(ws.OpPing, true, "p"), frame(ws.OpContinuation, true, "}\n")))
	f.Add([]byte{0x81, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 'x'})
	f.Fuzz(func(t *testing.T, sent []byte) {
		text, answered, _ := readWebSocket(sent)
		require.LessOrEqual(t, len(text), len(sent))
		require.LessOrEqual(t, len(answered), 4*len(sent)+16, "a pong is a ping and a mask")
	})
}

func TestAWebSocketIsKeptByPingsAndSaysGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithTransport(WebSocket))
		time.Sleep(24 * time.Hour)
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		require.Len(t, f.seen(), 1, "one connection all day")
		s.Close()
		synctest.Wait()
		f.set(func() {
			require.Equal(t, 4*60*24, f.pongs)
			require.Equal(t, 1, f.goodbyes)
		})
	})
}

func TestAnEndedSocketIsReopenedFromThePositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish("a", 2)
		s := subscribe(t, serveFake(t, f), []wire.Start{FromOldest("a"), FromNow("b")}, WithTransport(WebSocket))
		wantNext(t, s, "a@k3:1", "a@k3:2")
		began := time.Now()
		f.endSessions()
		f.publish("a", 1)
		f.publish("b", 1)
		wantNext(t, s, "a@k3:3", "b@k3:1")
		require.Zero(t, time.Since(began))
		require.Equal(t, 2, f.opened)
		wantQuiet(t, s)
	})
}

// A client whose subscriber takes its time reads no pings, and says all the same that
// it is there.
func TestASlowCallersSocketSaysThatItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish("a", 3*itemBuffer)
		s := subscribe(t, serveFake(t, f), []wire.Start{FromOldest("a")}, WithTransport(WebSocket))
		time.Sleep(time.Hour)
		f.set(func() {
			require.InDelta(t, time.Hour/presenceInterval, f.pongs, 2)
			f.pongs = 0
		})
		for i := range 3 * itemBuffer {
			wantNext(t, s, fmt.Sprintf("a@k3:%d", i+1))
		}
		require.Len(t, f.seen(), 1)
	})
}

// Topics that a URL cannot say, because they are many or have a pace, are asked for
// by the first command.
func TestManyTopicsAreAskedForOverTheSocket(t *testing.T) {
	for name, starts := range map[string][]wire.Start{
		"many":  manyStarts(500),
		"paced": {Paced(FromNow("topic.number-0"), time.Second)},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			asked := ""
			f.script = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet {
					asked = r.URL.RawQuery
				}
				return false
			}
			s := subscribe(t, serveFake(t, f), starts, WithTransport(WebSocket), WithoutOwn("tab:7"))
			require.Equal(t, "client=tab%3A7&echo=false", asked, name)
			require.Len(t, s.Positions(), len(starts), name)
			f.publish("topic.number-0", 1)
			wantNext(t, s, "topic.number-0@k3:1")
			f.set(func() { require.Equal(t, 1, f.patches, name) })
		})
	}
}

// A change does not wait for items that nobody takes, and loses none of them.
func TestAChangeOverASocketPassesWhatWaits(t *testing.T) {
	for _, c := range []struct {
		name    string
		size    int
		sockets int
	}{{"little", 10, 1}, {"too much", 1 << 18, 2}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				for range 2 * itemBuffer {
					f.add("a", wire.Message{Type: "text/plain", Data: bytes.Repeat([]byte("x"), c.size)})
				}
				s := subscribe(t, serveFake(t, f), []wire.Start{FromOldest("a")}, WithTransport(WebSocket))
				synctest.Wait()
				wantChange(t, s, []wire.Start{FromNow("b")}, nil, "b@k3:0")
				require.Equal(t, c.sockets, f.opened)
				for i := range 2 * itemBuffer {
					item, err := s.Next(t.Context())
					require.NoError(t, err)
					require.EqualValues(t, i+1, item.Position().Offset)
				}
				f.publish("b", 1)
				wantNext(t, s, "b@k3:1")
				wantQuiet(t, s)
			})
		})
	}
}

// Frames of what was removed may follow the reply, as far as the daemon has promised,
// and would hide what a topic that is taken back is owed.
func TestATopicIsTakenBackOverAnotherSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish("a", 2)
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a"), FromNow("b")}, WithTransport(WebSocket))
		wantChange(t, s, []wire.Start{FromNow("c")}, []string{"a"}, "c@k3:0")
		require.Equal(t, 1, f.opened)
		wantChange(t, s, []wire.Start{FromOldest("a")}, nil, "a@k3:0")
		require.Equal(t, 2, f.opened)
		wantNext(t, s, "a@k3:1", "a@k3:2")
		wantChange(t, s, []wire.Start{FromNow("d")}, []string{"c"}, "d@k3:0")
		wantChange(t, s, []wire.Start{FromNow("c")}, nil, "c@k3:0")
		require.Equal(t, 3, f.opened, "what was added by a change counts as well")
	})
}

// The connection breaks before the reply: the change is made on the next.
func TestAChangeOutlivesItsSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithTransport(WebSocket))
		synctest.Wait()
		f.set(func() {
			f.script = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPatch {
					panic(http.ErrAbortHandler)
				}
				return false
			}
		})
		wantChange(t, s, []wire.Start{FromNow("b")}, []string{"a"}, "b@k3:0")
		f.publish("a", 1)
		f.publish("b", 1)
		wantNext(t, s, "b@k3:1")
		wantPositions(t, s, "b@k3:1")
		wantQuiet(t, s)
	})
}

// readsNothing is a script of a daemon that says something on the first WebSocket, and
// never reads it.
func readsNothing(t *testing.T, says ...wire.Content) func(http.ResponseWriter, *http.Request) bool {
	met := false
	return func(w http.ResponseWriter, r *http.Request) bool {
		if met {
			return false
		}
		met = true
		conn, _, _, err := ws.UpgradeHTTP(r, w)
		require.NoError(t, err)
		for _, c := range says {
			_, _ = conn.Write(webSocketFormat(JSON).encode(c))
		}
		time.Sleep(time.Hour)
		conn.Close()
		return true
	}
}

// A change that nobody reads is given up with its connection, which holds nothing else
// up.
func TestAStuckSocketIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		hello := wire.Content{Hello: &wire.Hello{Positions: []wire.Position{{Topic: "a", Epoch: "k3"}}}}
		f.script = readsNothing(t, hello)
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithTransport(WebSocket))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := s.Change(ctx, []wire.Start{FromNow("b")}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		require.Less(t, time.Since(began), 2*time.Second)
		wantPositions(t, s, "a@k3:1")
		s.Close()
		time.Sleep(2 * time.Hour)
	})
}

// Close does not wait for a pong that nobody reads.
func TestAStuckSocketCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		hello := wire.Content{Hello: &wire.Hello{Positions: []wire.Position{{Topic: "a", Epoch: "k3"}}}}
		f.script = readsNothing(t, hello, wire.Content{})
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithTransport(WebSocket))
		synctest.Wait()
		began := time.Now()
		s.Close()
		require.LessOrEqual(t, time.Since(began), goodbyeTimeout)
		time.Sleep(2 * time.Hour)
	})
}

// The handshake goes the way of all requests.
func TestAWebSocketIsMadeByTheHTTPClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		plain := serveFake(t, f)
		authorised := ""
		f.script = func(_ http.ResponseWriter, r *http.Request) bool {
			authorised = r.Header.Get("Authorization")
			return false
		}
		through := func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer of news")
			return plain.http.Transport.RoundTrip(r)
		}
		c, err := New("http://daemon", WithHTTPClient(&http.Client{Transport: roundTrip(through)}))
		require.NoError(t, err)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithTransport(WebSocket))
		require.Equal(t, "Bearer of news", authorised)
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
	})
}

// A RoundTripper that wraps every body has nothing to write to.
func TestAnHTTPClientThatCannotUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		plain := serveFake(t, f)
		through := func(r *http.Request) (*http.Response, error) {
			resp, err := plain.http.Transport.RoundTrip(r)
			if err == nil {
				resp.Body = struct{ io.ReadCloser }{resp.Body}
			}
			return resp, err
		}
		c, err := New("http://daemon", WithHTTPClient(&http.Client{Transport: roundTrip(through)}))
		require.NoError(t, err)
		_, err = c.Subscribe(t.Context(), []wire.Start{FromNow("a")}, WithTransport(WebSocket))
		require.ErrorIs(t, err, errNoUpgrade)
		require.Equal(t, HTTPStream, subscribe(t, c, []wire.Start{FromNow("a")}).Transport())
	})
}

func TestUpgraded(t *testing.T) {
	head := http.Header{"Upgrade": {"WebSocket"}, "Sec-Websocket-Accept": {"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="}} // RFC 6455, section 1.3
	require.True(t, upgraded(head, "dGhlIHNhbXBsZSBub25jZQ=="))
	require.False(t, upgraded(head, "another"))
	head.Set("Sec-WebSocket-Extensions", "permessage-deflate")
	require.False(t, upgraded(head, "dGhlIHNhbXBsZSBub25jZQ=="))
}
