package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// viewers know the principal by Authorization. Everyone may subscribe to chat topics, and
// ann may see who is there.
type viewers struct{ auth.Open }

func (viewers) Identify(c auth.Credentials, _ bool) (*auth.Grant, error) {
	rights := `[{"topics":["chat.>","_presence.>"],"allow":["subscribe","history","publish","delete"]}]`
	if c.Authorization == "ann" {
		rights = `[{"topics":["chat.>"],"allow":["subscribe","presence"]}]`
	}
	parsed, err := auth.ParseRights([]byte(rights), c.Authorization)
	return &auth.Grant{Subject: c.Authorization, Rights: parsed}, err
}

var chatWithPresence = broker.Config{Rules: []broker.Rule{{Name: "chat", Pattern: "chat.>", Presence: true}}}

func TestOnlyThosePermittedSeeWhoIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Authority: viewers{}, Broker: chatWithPresence})
		const ann, bob = "Authorization: ann", "Authorization: bob"
		status, _ := k.Get("POST", "/v1/sessions", `{"topics":["chat.a"],"client":"c1"}`, lanetest.JSONType, bob)
		require.Equal(k, 201, status)
		status, text := k.Get("GET", "/v1/topics/chat.a/presence", "", ann)
		require.Equal(k, 200, status, text)
		var list wire.PresenceList
		require.NoError(k, json.Unmarshal([]byte(text), &list))
		require.Len(k, list.Members, 1)
		require.Equal(k, "bob/c1", list.Members[0].Key)
		require.Equal(k, "_presence.chat.a", list.Position.Topic)

		status, _ = k.Get("POST", "/v1/sessions", `{"topics":["chat.a"]}`, lanetest.JSONType, ann)
		require.Equal(k, 201, status)
		status, text = k.Get("GET", "/v1/poll?topic="+list.Position.String(), "", ann)
		require.Equal(k, 200, status)
		require.Contains(k, text, `"key":"ann/","data":{"event":"join","subject":"ann",`)
		status, _ = k.Get("GET", "/v1/poll?topic=_presence.chat.*", "", ann)
		require.Equal(k, 200, status)
		k.WantProblem(wire.CodeForbidden, "GET", "/v1/poll?topic=_presence.>", "", ann)
		k.WantProblem(wire.CodeForbidden, "GET", "/v1/topics/_presence.chat.a/presence", "", ann)

		for _, c := range [][2]string{
			{"GET", "/v1/topics/chat.a/presence"},
			{"GET", "/v1/poll?topic=_presence.chat.a"},
			{"GET", "/v1/poll?topic=_presence.*.a"},
			{"GET", "/v1/sse?topic=_presence.>"},
			{"GET", "/v1/topics/_presence.chat.a"},
			{"GET", "/v1/topics/_presence.chat.a/messages"},
		} {
			k.WantProblem(wire.CodeForbidden, c[0], c[1], "", bob)
		}
		_, topics := k.Get("GET", "/v1/topics", "", bob)
		require.NotContains(k, topics, "_presence")
		_, topics = k.Get("GET", "/v1/topics", "", ann)
		require.Contains(k, topics, "_presence.chat.a")
		for _, who := range []string{ann, bob} {
			k.WantProblem(wire.CodeReservedTopic, "POST", "/v1/topics/_presence.chat.a/messages", "1", lanetest.JSONType, who)
			k.WantProblem(wire.CodeReservedTopic, "DELETE", "/v1/topics/_presence.chat.a", "", who)
		}
	})
}

// A list of more than 64 KiB comes in pieces.
func TestALongListOfMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: chatWithPresence})
		for i := range 500 {
			k.Open(fmt.Sprintf(`{"topics":["chat.a"],"client":"%064d"}`, i))
			time.Sleep(time.Millisecond)
		}
		status, text := k.Get("GET", "/v1/topics/chat.a/presence", "")
		require.Equal(k, 200, status)
		require.Greater(k, len(text), 64<<10)
		var list wire.PresenceList
		require.NoError(k, json.Unmarshal([]byte(text), &list))
		require.Len(k, list.Members, 500)
		for i, m := range list.Members {
			require.Equal(k, fmt.Sprintf("/%064d", i), m.Key, "in the order in which they came")
		}
	})
}

// A name of the longest topic still leaves room for that of its presence topic.
func TestTheLongestTopicHasPresence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: chatWithPresence})
		topic := "chat." + strings.Repeat("x", wire.MaxTopicBytes-5)
		_, text := k.Get("GET", "/v1/topics/"+topic+"/presence", "")
		var list wire.PresenceList
		require.NoError(k, json.Unmarshal([]byte(text), &list))
		s := k.Open(`{"topics":["` + list.Position.String() + `"]}`)
		k.Open(`{"topics":["` + topic + `"],"client":"c1"}`)
		_, text = k.Get("GET", "/v1/sessions/"+s.Session+"/poll?ack=0", "")
		require.Contains(k, text, `"event":"join"`)
	})
}
