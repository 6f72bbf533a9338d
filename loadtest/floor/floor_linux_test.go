package floor

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// start returns the address of a floor that runs until the test ends.
func start(t *testing.T) string {
	t.Helper()
	s, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- s.Serve() }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-ended)
	})
	return s.Addr().String()
}

// A peer is one connection to the floor.
type peer struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, address string) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &peer{t, conn, bufio.NewReader(conn)}
}

func (p *peer) send(text string) {
	p.t.Helper()
	_, err := io.WriteString(p.conn, text)
	require.NoError(p.t, err)
}

func (p *peer) get(path string) {
	p.send("GET " + path + " HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n")
}

// answer returns the body of the next answer.
func (p *peer) answer() io.Reader {
	p.t.Helper()
	a, err := http.ReadResponse(p.in, nil)
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		p.conn.Close() // first, since a stream's body does not end
		_ = a.Body.Close()
	})
	require.Equal(p.t, http.StatusOK, a.StatusCode)
	return a.Body
}

func (p *peer) body() string {
	p.t.Helper()
	text, err := io.ReadAll(p.answer())
	require.NoError(p.t, err)
	return string(text)
}

func (p *peer) publish(topic, message string) {
	p.t.Helper()
	p.send(publishing(topic, message))
	require.Empty(p.t, p.body())
}

func publishing(topic, message string) string {
	return fmt.Sprintf("POST /pub?t=%s HTTP/1.1\r\nHost: h\r\ncontent-length: %d\r\n\r\n%s", topic, len(message), message)
}

func TestAPollIsAnsweredWithTheNextMessage(t *testing.T) {
	address := start(t)
	first, second, other, p := dial(t, address), dial(t, address), dial(t, address), dial(t, address)
	first.get("/poll?t=a")
	second.get("/poll?t=a")
	other.get("/poll?t=b")
	p.publish("nobody", "x") // the others' polls have come when this is answered
	p.publish("a", "one")
	require.Equal(t, "one", first.body())
	require.Equal(t, "one", second.body())

	p.publish("a", "two")
	p.publish("a", "three")
	first.get("/poll?t=a")
	require.Equal(t, "two", first.body(), "what came between two polls is not lost")
	first.get("/poll?t=a")
	require.Equal(t, "three", first.body())

	second.conn.Close()
	p.publish("b", "four")
	require.Equal(t, "four", other.body())
}

func TestAStreamHasALineForEachMessage(t *testing.T) {
	address := start(t)
	s, p := dial(t, address), dial(t, address)
	s.get("/stream?t=a")
	lines := bufio.NewReader(s.answer())
	for _, message := range []string{"one", strings.Repeat("x", 10_000)} {
		p.publish("a", message)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, message+"\n", line)
	}
}

func TestPublishesComeInPiecesAndTogether(t *testing.T) {
	address := start(t)
	s, p := dial(t, address), dial(t, address)
	s.get("/stream?t=a")
	lines := bufio.NewReader(s.answer())
	text := publishing("a", "one") + publishing("a", "two")
	p.send(text[:20])
	dial(t, address).publish("b", "x") // the piece has come when this is answered
	p.send(text[20:])
	require.Empty(t, p.body())
	require.Empty(t, p.body())
	for _, want := range []string{"one\n", "two\n"} {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, line)
	}
}

func TestWhatTheFloorDoesNotServeIsCutOff(t *testing.T) {
	address := start(t)
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "GET /?t=a HTTP/1.1\r\n\r\n", "POST /pub?t=a HTTP/1.1\r\nContent-Length: -1\r\n\r\n"} {
		p := dial(t, address)
		p.send(text)
		_, err := p.in.ReadByte()
		require.Error(t, err, "%q", text)
	}
}

func TestAnAddressInUseIsSaid(t *testing.T) {
	_, err := Listen(start(t))
	require.ErrorContains(t, err, "address already in use")
}
