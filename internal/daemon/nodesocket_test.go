package daemon

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// nodeSocket is a client that uses the npm package ws.
type nodeSocket struct {
	*testing.T
	lines <-chan []byte
}

// want waits for these words and nothing else: "open(EXTENSIONS)", "hello", "a1",
// "gap(restarted a2-0)", "reply(1 b0)", "end(draining)", "close(1001)". It skips attempts
// to connect that failed.
func (n *nodeSocket) want(words ...string) {
	n.Helper()
	for _, want := range words {
		got := n.next()
		for got == "close(1006)" && want != got {
			got = n.next()
		}
		require.Equal(n, want, got, "of %q", words)
	}
}

func (n *nodeSocket) next() string {
	n.Helper()
	var line struct {
		Type, Extensions string
		Code             int
		Frame            json.RawMessage
	}
	nextLine(n.T, n.lines, &line)
	switch line.Type {
	case "open":
		return fmt.Sprintf("open(%s)", line.Extensions)
	case "close":
		return fmt.Sprintf("close(%d)", line.Code)
	}
	c, err := wire.ParseLine(line.Frame)
	require.NoError(n, err, "%s", line.Frame)
	return n.word(c)
}

func (n *nodeSocket) word(c wire.Content) string {
	n.Helper()
	switch {
	case c.Hello != nil:
		return "hello"
	case c.Gap != nil:
		return fmt.Sprintf("gap(%s %s%d-%d)", c.Gap.Reason, c.Gap.Topic, c.Gap.After.Offset, c.Gap.Position.Offset)
	case c.End != nil:
		return fmt.Sprintf("end(%s)", c.End.Code)
	case c.Reply != nil:
		return "reply(" + replyWord(c.Reply) + ")"
	}
	require.NotNil(n, c.Message)
	return fmt.Sprintf("%s%d", c.Message.Position.Topic, c.Message.Position.Offset)
}

func replyWord(r *wire.Reply) string {
	word := "-"
	if r.Ref != nil {
		word = fmt.Sprint(*r.Ref)
	}
	for _, p := range r.Positions {
		word += fmt.Sprintf(" %s%d", p.Topic, p.Offset)
	}
	if r.Position != nil {
		word += fmt.Sprintf(" %s%d", r.Position.Topic, r.Position.Offset)
	}
	if r.Problem != nil {
		word += " " + string(r.Problem.Code)
	}
	return word
}

// A third-party WebSocket client sends commands. It resumes from its positions after a
// cut and after a planned restart, and gets gaps after a crash. The daemon reads its
// compressed messages.
func TestAThirdPartyWebSocketReconnects(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"off", "handoff"} {
		t.Run("lane "+lane, func(t *testing.T) { comesBackBySocket(t, lane) })
	}
}

func comesBackBySocket(t *testing.T, lane string) {
	r := newLine(t)
	keeping := keptIn(filepath.Join(t.TempDir(), "state"))
	d := startLane(t, lane, keeping)
	r.passTo(d.PublicAddr())
	lines := runNode(t, "sockets.mjs", r.Addr().String(), "a",
		`{"subscribe":["b"],"ref":1}`, `{"publish":{"topic":"b","data":{"n":1}},"ref":2}`, `{"ping":true,"ref":3}`,
		`{"publish":{"topic":"b..","data":1}}`, `{"unsubscribe":["nothing"],"ref":4}`)
	n := &nodeSocket{T: t, lines: lines}
	const opened = "open(permessage-deflate)"
	n.want(opened, "hello")
	var words []string
	for range 6 {
		words = append(words, n.next())
	}
	require.ElementsMatch(t, []string{"reply(1 b0)", "reply(2 b1)", "b1", "reply(3)", "reply(- invalid_topic)", "reply(4)"}, words)
	d.published()
	n.want("a1")

	r.passTo("") // cut; no daemon is reachable for a while
	d.published()
	d.published()
	r.passTo(d.PublicAddr())
	n.want(opened, "hello", "a2", "a3")

	require.NoError(t, d.wait()) // a planned restart
	n.want("end(draining)", "close(1001)")
	d = startLane(t, lane, keeping)
	d.published()
	r.passTo(d.PublicAddr())
	n.want(opened, "hello", "a4")

	r.passTo("") // a crash: no state is left
	require.NoError(t, d.wait())
	d = startLane(t, lane, nil)
	d.published()
	r.passTo(d.PublicAddr())
	n.want(opened, "hello")
	require.ElementsMatch(t, []string{"gap(restarted a4-0)", "gap(restarted b1-0)", "a1"}, []string{n.next(), n.next(), n.next()})
	d.published()
	n.want("a2")
}
