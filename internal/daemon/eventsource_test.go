package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// nodeEvents are event streams that a third-party EventSource follows, an npm package. Each
// stream has another kind of event ID.
type nodeEvents struct {
	*testing.T
	lines <-chan []byte
	words map[int][]string // by stream: words that want has not checked yet
	ids   map[int]string   // by stream: the ID of the last event
}

// followByNode follows the streams of these queries at address, from now on.
func followByNode(t *testing.T, npm, address string, queries ...string) *nodeEvents {
	t.Helper()
	arguments := []string{npm}
	for _, q := range queries {
		arguments = append(arguments, "http://"+address+"/v1/sse?"+q)
	}
	return &nodeEvents{T: t, lines: runNode(t, "events.mjs", arguments...), words: map[int][]string{}, ids: map[int]string{}}
}

// want waits until each stream got these words, in order and nothing else: "hello", "a1",
// "gap(restarted a2-0)", "end(draining)". A lost connection is not a word. If the client
// gives up, the word is "stopped(STATUS)".
func (n *nodeEvents) want(words map[int][]string) {
	n.Helper()
	for source, want := range words {
		for len(n.words[source]) < len(want) {
			n.read()
		}
		require.Equal(n, want, n.words[source][:len(want)], "of stream %d", source)
		n.words[source] = n.words[source][len(want):]
	}
}

// wantAll is want with the same words for all streams.
func (n *nodeEvents) wantAll(words ...string) {
	n.Helper()
	n.want(map[int][]string{0: words, 1: words, 2: words})
}

func (n *nodeEvents) read() {
	n.Helper()
	var e struct {
		Source         int
		Type, ID, Data string
		Status         int
		Closed         bool
	}
	nextLine(n.T, n.lines, &e)
	if e.Type == "error" {
		if e.Closed {
			n.words[e.Source] = append(n.words[e.Source], fmt.Sprintf("stopped(%d)", e.Status))
		}
		return
	}
	require.NotEmpty(n, e.ID, "%+v", e)
	n.ids[e.Source] = e.ID
	c, err := wire.ParseLine([]byte(e.Data))
	require.NoError(n, err, "%+v", e)
	word := e.Type
	switch {
	case c.Gap != nil:
		word = fmt.Sprintf("%s(%s %s%d-%d)", e.Type, c.Gap.Reason, c.Gap.Topic, c.Gap.After.Offset, c.Gap.Position.Offset)
	case c.End != nil:
		word = fmt.Sprintf("%s(%s)", e.Type, c.End.Code)
	case c.Message != nil:
		require.Equal(n, "message", e.Type)
		word = fmt.Sprintf("%s%d", c.Message.Position.Topic, c.Message.Position.Offset)
	}
	n.words[e.Source] = append(n.words[e.Source], word)
}

// A third-party EventSource resumes after its last event when its connection was cut,
// after a planned restart, and after a crash. Gaps announce what was lost. The package
// eventsource sends the id of the last event as a browser does, and event-source-polyfill
// in the query.
func TestAThirdPartyEventSourceReconnects(t *testing.T) {
	t.Parallel()
	for _, npm := range []string{"eventsource", "event-source-polyfill"} {
		t.Run(npm, func(t *testing.T) { reconnects(t, npm) })
	}
}

func reconnects(t *testing.T, npm string) {
	r := newLine(t)
	path := filepath.Join(t.TempDir(), "state")
	d := start(t, keptIn(path))
	r.passTo(d.PublicAddr())
	n := followByNode(t, npm, r.Addr().String(), "topic=a", "topic=a&topic=b", "topic=a&topic=b.>")
	n.wantAll("hello")
	d.published()
	n.wantAll("a1")
	require.Contains(t, n.ids[0], "a@")
	require.Contains(t, n.ids[1], ",b@")
	require.Contains(t, n.ids[2], "~")

	r.passTo("") // cut; no daemon is reachable for a while
	d.published()
	d.published()
	r.passTo(d.PublicAddr())
	n.wantAll("hello", "a2", "a3")

	require.NoError(t, d.wait()) // a planned restart
	n.wantAll("end(draining)")
	d = start(t, keptIn(path))
	d.published()
	r.passTo(d.PublicAddr())
	n.want(map[int][]string{
		0: {"hello", "a4"}, 1: {"hello", "a4"},
		2: {"hello", "a4"}, // its session has ended with the daemon
	})

	r.passTo("") // a crash: no state is left
	require.NoError(t, d.wait())
	d = start(t, nil)
	d.published()
	r.passTo(d.PublicAddr())
	n.want(map[int][]string{
		0: {"hello", "gap(restarted a4-0)", "a1"},
		1: {"hello", "gap(restarted a4-0)", "gap(restarted b0-0)", "a1"},
		2: {"hello", "gap(restarted b.>0-0)", "gap(restarted a4-0)", "a1"},
	})

	hello, err := transport.ParseEventID(n.ids[2])
	require.NoError(t, err)
	d.post("/v1/sessions/"+hello.Session+"/close", "")
	n.want(map[int][]string{2: {"end(session_ended)"}})
	if npm == "eventsource" { // the other fails at an answer without a body, and tries again
		n.want(map[int][]string{2: {"stopped(204)"}})
	}
}

// The session of an event stream of a pattern ends with the daemon. With a log on disk, the
// client continues from the positions in the id of its last event, after a planned restart
// and after a crash.
func TestAnEventSourceOnAPatternGetsNothingTwiceAcrossARestart(t *testing.T) {
	t.Parallel()
	stored := func(folder string) func(c *config.Config) {
		return func(c *config.Config) { c.Store.Dir = folder }
	}
	r := newLine(t)
	folder := t.TempDir()
	d := start(t, stored(folder))
	r.passTo(d.PublicAddr())
	n := followByNode(t, "eventsource", r.Addr().String(), "topic=room.*", "topic=room.*&topic=a@oldest")
	n.wantBoth("hello")
	publish := func(topics ...string) {
		for _, topic := range topics {
			p, err := d.broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
			require.NoError(t, err)
			n.wantBoth(fmt.Sprintf("%s%d", topic, p.Position.Offset))
		}
	}
	publish("room.one", "room.two", "room.one")

	require.NoError(t, d.wait())
	n.wantBoth("end(draining)")
	d = start(t, stored(folder))
	r.passTo(d.PublicAddr())
	n.wantBoth("hello")
	publish("room.two", "room.four", "room.one")

	r.passTo("") // a crash: another daemon gets a copy of the log as it is
	crashed := t.TempDir()
	require.NoError(t, os.CopyFS(crashed, os.DirFS(folder)))
	require.NoError(t, d.wait())
	d = start(t, stored(crashed))
	r.passTo(d.PublicAddr())
	n.wantBoth("hello")
	publish("room.four", "room.five")
}

// wantBoth is want with the same words for the first two streams.
func (n *nodeEvents) wantBoth(words ...string) {
	n.Helper()
	n.want(map[int][]string{0: words, 1: words})
}
