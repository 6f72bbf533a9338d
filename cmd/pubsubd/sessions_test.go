package main

import (
	"encoding/json"
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
	require.Regexp(t, `^SESSION +AGE +IDLE +TOPICS +QUEUED +UNACKED +LAG +MOST +WAITS FOR$`, lines[0])
	require.Regexp(t, `^2 +\d+s +\d+s +2 +3 +0 +3 +b +poll$`, lines[1])
	require.Regexp(t, `^1 +\d+s +\d+s +1 +0 +0 +0 +- +-$`, lines[2])
	require.Equal(t, "2 of 2 sessions; 0 stateless polls", strings.TrimSpace(lines[3]))

	r = s.do("sessions", "--json", "--limit=1", "--sort=idle")
	var list wire.SessionList
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list))
	require.Equal(t, 2, list.Open)
	require.Len(t, list.Sessions, 1)
	require.EqualValues(t, 1, list.Sessions[0].Number)
	require.NotContains(t, r.stdout, opened.Session[:8])
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
