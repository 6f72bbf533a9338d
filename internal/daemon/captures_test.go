package daemon

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A capture is a request as a real client sent it. The README in captureDir explains its
// placeholders.
type capture struct {
	name string // for example chromium-poll
	text string
}

const captureDir = "../lane/testdata"

// captures reads all captures, sorted by name.
func captures(t testing.TB) []capture {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(captureDir, "captured", "*.http"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	all := make([]capture, len(paths))
	for i, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		head, _, whole := strings.Cut(string(text), "\r\n\r\n")
		require.True(t, whole && strings.Count(head, "\n") == strings.Count(head, "\r\n"), "%s: an editor took its CRLF away", path)
		all[i] = capture{name: strings.TrimSuffix(filepath.Base(path), ".http"), text: string(text)}
	}
	return all
}

func (c capture) publishes() bool { return strings.HasPrefix(c.text, "POST ") }
func (c capture) once() bool      { return strings.Contains(c.text, "\r\nIdempotency-Key: ") }
func (c capture) stateless() bool { return strings.HasPrefix(c.text, "GET /v1/poll?") }

// Topics of the captures: one for publishes, one for polls without a session.
const (
	capturedPublishPath = "/v1/topics/a.b/messages"
	capturedPollTopic   = "a@k3:17"
)

// with replaces the capture's topics.
func (c capture) with(published, polled string) string {
	return strings.NewReplacer(
		capturedPublishPath, "/v1/topics/"+published+"/messages",
		"topic="+capturedPollTopic, "topic="+polled+"@k3:17",
	).Replace(c.text)
}

// of replaces the placeholders for host and session.
func of(request, host, session string) string {
	return strings.NewReplacer("HOST", host, "SESSION", session).Replace(request)
}

// A rawConn is a client connection to which a test writes raw bytes.
type rawConn struct {
	testing.TB
	net.Conn
	in *bufio.Reader
}

// dialRaw connects. All reads and writes must end within patience.
func dialRaw(t testing.TB, addr string, patience time.Duration) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return &rawConn{TB: t, Conn: conn, in: bufio.NewReader(conn)}
}

func (c *rawConn) send(text string) {
	c.Helper()
	_, err := io.WriteString(c.Conn, text)
	require.NoError(c, err)
}

// answer reads one answer. The head has its fields sorted, without Date.
func (c *rawConn) answer() (head, body string) {
	c.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	require.NoError(c, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(c, err)
	require.False(c, resp.Close, "the connection is kept")
	lines := []string{resp.Status}
	for name, values := range resp.Header {
		if name != "Date" {
			lines = append(lines, name+": "+strings.Join(values, ", "))
		}
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n"), string(text)
}

// exchange sends a request and reads its answer.
func (c *rawConn) exchange(request string) (head, body string) {
	c.Helper()
	c.send(request)
	return c.answer()
}
