package lanetest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A RawConn is a client connection to which a test writes raw bytes.
type RawConn struct {
	testing.TB
	net.Conn
	in *bufio.Reader
}

// DialRaw connects. All reads and writes must end within patience.
func DialRaw(t testing.TB, addr string, patience time.Duration) *RawConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return &RawConn{TB: t, Conn: conn, in: bufio.NewReader(conn)}
}

// Send writes text.
func (c *RawConn) Send(text string) {
	c.Helper()
	_, err := io.WriteString(c.Conn, text)
	require.NoError(c, err)
}

// Answer reads one answer. The head has its fields sorted, without Date.
func (c *RawConn) Answer() (head, body string) {
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

// Exchange sends a request and reads its answer.
func (c *RawConn) Exchange(request string) (head, body string) {
	c.Helper()
	c.Send(request)
	return c.Answer()
}

// ContentLength finds the length of an answer in its head.
var ContentLength = regexp.MustCompile(`(?m)^Content-Length: (\d+)\r$`)

var dateField = regexp.MustCompile(`(?m)^Date: [^\r]*`)

// Exactly reads a whole answer, or the head of a stream. It masks only the date, so the
// order of the fields counts.
func (c *RawConn) Exactly() (head, body string) {
	c.Helper()
	for !strings.HasSuffix(head, "\r\n\r\n") {
		line, err := c.in.ReadString('\n')
		require.NoError(c, err)
		head += line
	}
	if length := ContentLength.FindStringSubmatch(head); length != nil {
		n, err := strconv.Atoi(length[1])
		require.NoError(c, err)
		text := make([]byte, n)
		_, err = io.ReadFull(c.in, text)
		require.NoError(c, err)
		body = string(text)
	}
	return dateField.ReplaceAllString(head, "Date: …"), body
}

// Ask is Exchange that reads Exactly.
func (c *RawConn) Ask(request string) (head, body string) {
	c.Helper()
	c.Send(request)
	return c.Exactly()
}
