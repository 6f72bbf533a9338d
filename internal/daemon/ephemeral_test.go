package daemon

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A chat has lines, which the log on disk keeps, and typing indicators, which are ephemeral. A client
// follows both by one pattern. After a restart it resumes: the lines without a gap, the indicators
// with one.
func TestAPatternOverBothKindsResumesAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	chat := func(c *config.Config) {
		loggedIn(dir)(c)
		c.Broker.Rules = []broker.Rule{{Name: "typing", Pattern: "chat.*.typing", Ephemeral: true}}
	}
	publish := func(d *running, topic string) wire.Position {
		var p wire.Published
		require.NoError(t, json.Unmarshal([]byte(d.post("/v1/topics/"+topic+"/messages", "1")), &p))
		return p.Position
	}
	frames := func(d *running, path string) string {
		status, body := d.get("http://" + d.PublicAddr() + path)
		require.Equal(t, 200, status, body)
		return regexp.MustCompile(`,"time":\d+`).ReplaceAllString(body, "")
	}
	message := func(at wire.Position) string { return `{"position":"` + at.String() + `","data":1}` + "\n" }

	one := start(t, chat)
	s := one.open(`"chat.>"`)
	line, typing := publish(one, "chat.1"), publish(one, "chat.1.typing")
	require.NotEqual(t, line.Epoch, typing.Epoch)
	require.Equal(t, message(line)+message(typing), frames(one, "/v1/sessions/"+s.Session+"/poll?ack=0"))
	missed := publish(one, "chat.1")
	require.NoError(t, one.wait())

	two := start(t, chat)
	s = two.open(`"` + s.Positions[0].String() + `","` + line.String() + `","` + typing.String() + `"`)
	next := publish(two, "chat.1.typing")
	require.NotEqual(t, typing.Epoch, next.Epoch)
	restarted := func(at wire.Position) string {
		return `{"gap":{"topic":"chat.1.typing","reason":"restarted","after":"` + typing.String() + `","position":"` + at.String() + `"}}` + "\n"
	}
	require.Equal(t, message(missed)+restarted(next), frames(two, "/v1/sessions/"+s.Session+"/poll?ack=0"))
	last := publish(two, "chat.1.typing")
	require.Equal(t, message(last), frames(two, "/v1/sessions/"+s.Session+"/poll?ack=2"))
	done := `{"done":{"position":"` + last.String() + `","more":false}}` + "\n"
	require.Equal(t, done, frames(two, "/v1/topics/chat.1.typing/messages"), "it has no history")
	require.Equal(t, restarted(last)+done, frames(two, "/v1/topics/chat.1.typing/messages?after="+typing.String()))
}
