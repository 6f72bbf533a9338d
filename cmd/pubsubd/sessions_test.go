package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestSessionsThatLagAreListedWithTheirReason(t *testing.T) {
	s := serveProcess(t)
	var opened wire.SessionOpened
	require.NoError(t, json.Unmarshal([]byte(s.post("/v1/sessions", `{"topics":["quiet"]}`)), &opened))
	s.post("/v1/sessions", `{"topics":["a","b"]}`)
	for _, topic := range []string{"a", "b", "b"} {
		s.do("publish", topic, "1")
	}
	s.waitForMetric("pubsubd_session_queued_frames 3")
	r := s.do("sessions")
	lines := strings.Split(r.stdout, "\n")
	require.Regexp(t, `^SESSION +AGE +IDLE +TOPICS +QUEUED +UNACKED +LAG +MOST +WAITS FOR +CLIENT$`, lines[0])
	require.Regexp(t, `^2 +\d+s +\d+s +2 +3 +0 +3 +b +poll +-$`, lines[1])
	require.Regexp(t, `^1 +\d+s +\d+s +1 +0 +0 +0 +- +- +-$`, lines[2])
	require.Equal(t, "2 of 2 sessions and connections; 0 stateless polls; at "+s.admin, strings.TrimSpace(lines[3]))

	r = s.do("sessions", "--json", "--limit=1", "--sort=idle")
	var list wire.SessionList
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list))
	require.Equal(t, 2, list.Open)
	require.Len(t, list.Sessions, 1)
	require.EqualValues(t, 1, list.Sessions[0].Number)
	require.NotContains(t, r.stdout, opened.Session[:8])
}

// A subscriber over a WebSocket, TCP or a stream without a session is listed, too. An operator
// sees which program it is, and where it runs.
func TestConnectionsWithoutASessionAreListedWithTheirClient(t *testing.T) {
	s := serveProcess(t, "--listen-tcp=127.0.0.1:0")
	s.do("publish", "a", "1")
	for _, args := range [][]string{nil, {"--transport=tcp", "--tcp", s.tcp}, {"--transport=sse"}} {
		subscribe(s, append(args, "a@oldest")...).line()
	}
	resp, err := http.Get(s.public + "/v1/poll?mode=stream&topic=d")
	require.NoError(t, err)
	defer resp.Body.Close()
	s.post("/v1/sessions", `{"topics":["e"]}`)

	r := s.do("sessions")
	lines := strings.Split(r.stdout, "\n")
	own := ` 127\.0\.0\.1 pubsubd/v0\.0\.0-test subscribe$`
	require.Regexp(t, `^1 +\d+s +connected +1 +0 +0 +0 +- +- +websocket`+own, lines[1])
	require.Regexp(t, `^2 .* +tcp 127\.0\.0\.1$`, lines[2])
	require.Regexp(t, `^3 .* +sse`+own, lines[3])
	require.Regexp(t, `^4 .* +stream 127\.0\.0\.1`, lines[4])
	require.Regexp(t, `^5 +\d+s +\d+s .* +-$`, lines[5])
	require.Equal(t, "5 of 5 sessions and connections; 0 stateless polls; at "+s.admin, strings.TrimSpace(lines[6]))

	var list wire.SessionList
	require.NoError(t, json.Unmarshal([]byte(s.do("sessions", "--json").stdout), &list))
	require.Equal(t, []int{1, 4, 4}, []int{list.Open, list.Connections, list.Stateless})
}

func TestSessionsCommandLinesThatCannotBeObeyed(t *testing.T) {
	for _, args := range [][]string{{"now"}, {"--sort=size"}, {"--limit=0"}, {"--limit=1001"}, {"--admin=here"}} {
		require.Equal(t, exitUsage, run(t, nil, append([]string{"sessions"}, args...)...).code, args)
	}
	s := serveProcess(t)
	r := run(t, nil, "sessions", "--admin", s.public)
	require.Equal(t, exitRunTime, r.code, "the wrong listener")
	require.Contains(t, r.stderr, "not_found")
}
