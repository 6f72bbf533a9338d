package daemon

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
)

// ask sends a request on a connection and returns its answer's body.
func ask(t *testing.T, conn net.Conn, answers *bufio.Reader, request string) string {
	t.Helper()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err := io.WriteString(conn, request)
	require.NoError(t, err)
	resp, err := http.ReadResponse(answers, nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, string(body))
	return string(body)
}

// Polls that are parked on the lane have no timers of their own. They still time out.
func TestAPollOnTheLaneIsAnsweredEmptyInTime(t *testing.T) {
	for _, way := range []string{"handoff", "channel"} {
		t.Run(way, func(t *testing.T) {
			d := start(t, func(c *config.Config) { c.Lane, c.Transport.PollTimeout = way, 50*time.Millisecond })
			conn, err := net.Dial("tcp", d.PublicAddr())
			require.NoError(t, err)
			defer conn.Close()
			answers := bufio.NewReader(conn)
			poll := fmt.Sprintf("GET /v1/sessions/%s/poll?ack=0 HTTP/1.1\r\nHost: h\r\n\r\n", d.open(`"a"`).Session)
			for range 3 {
				require.Empty(t, ask(t, conn, answers, poll))
			}
		})
	}
}

// An idle connection of the lane does not delay the drain.
func TestDrainClosesSilentConnectionsOfTheLane(t *testing.T) {
	d := start(t, func(c *config.Config) { c.DrainWindow = surely })
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(t, err)
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for range 2 { // by net/http, then on the lane
		ask(t, conn, answers, "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1")
	}
	require.NoError(t, d.wait())
	require.Empty(t, d.logged.FilterMessageSnippet("cutting off").All())
}
