package app

import (
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/presence"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// manage makes a request about a subject.
func (g *guarded) manage(c Caller, r wire.SubjectRequest) (wire.SubjectResult, error) {
	change, err := g.BeginSubject(g.Context(), c)
	if err != nil {
		return wire.SubjectResult{}, err
	}
	return change.Make(r)
}

// forbid forbids topics to ann for ten minutes, as a back end that may manage every topic.
func (g *guarded) forbid(topics ...string) wire.SubjectResult {
	g.Helper()
	result, err := g.manage(g.token("backend", time.Hour, ">", auth.Manage), wire.SubjectRequest{
		Subject: "ann", Forbid: topics, UntilMS: time.Now().Add(10 * time.Minute).UnixMilli(), Reason: "spam"})
	require.NoError(g, err)
	return result
}

// Nothing that a right on the topic would permit is possible while it is forbidden.
func TestAForbiddenTopicPermitsNothing(t *testing.T) {
	for name, call := range map[string]func(g *guarded, c Caller) error{
		"publish": func(g *guarded, c Caller) error { return g.publish(c, "chat.42", bodyOf("1")) },
		"publish many": func(g *guarded, c Caller) error {
			_, err := g.publishMany(g.Context(), c, request.Head{ContentType: request.HeaderOf([]string{"application/json"})}, bodyOf(`[{"topic":"chat.42","data":1}]`))
			return err
		},
		"publish by a command": func(g *guarded, c Caller) error {
			return g.command(g.connect(c, g.open(c, "log")), `{"publish":{"topic":"chat.42","data":1}}`)
		},
		"subscribe by a command": func(g *guarded, c Caller) error {
			return g.command(g.connect(c, g.open(c, "log")), `{"subscribe":["chat.42"]}`)
		},
		"change a session": func(g *guarded, c Caller) error { return g.patch(c, g.open(c, "log"), `{"add":["chat.42"]}`) },
		"open a session": func(g *guarded, c Caller) error {
			_, err := g.openSession(g.Context(), c, bodyOf(`{"topics":["log","chat.42"]}`))
			return err
		},
		"poll":         func(g *guarded, c Caller) error { return g.pollTopics(g.Context(), c, "topic=chat.42", nil) },
		"event stream": func(g *guarded, c Caller) error { _, err := g.openEvents(g.Context(), c, "topic=chat.42"); return err },
		"its presence topic": func(g *guarded, c Caller) error {
			return g.pollTopics(g.Context(), c, "topic=_presence.chat.42", nil)
		},
		"state": func(g *guarded, c Caller) error {
			return g.Topic(g.Context(), c, "chat.42", func(wire.TopicState) error { return nil })
		},
		"presence": func(g *guarded, c Caller) error {
			return g.Presence(g.Context(), c, "chat.42", func(_ wire.PresenceList, leave func()) error { leave(); return nil })
		},
		"history": func(g *guarded, c Caller) error {
			h := request.History{Start: wire.Start{Topic: "chat.42", From: wire.FromOldest}, Limit: 1}
			return g.History(g.Context(), c, h, func(_ iter.Seq[[]*frame.Frame], leave func()) error { leave(); return nil })
		},
		"delete": func(g *guarded, c Caller) error {
			return g.DeleteTopic(g.Context(), c, "chat.42", func(wire.TopicState) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			guard(t, func(g *guarded) {
				c := g.token("t", time.Hour, ">", auth.AllRights()...)
				_, err := g.cfg.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "chat.42"}, Data: []byte("1")}, 0, time.Now())
				require.NoError(t, err)
				require.NoError(t, call(g, c), "nothing is forbidden")
				_, err = g.cfg.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "chat.42"}, Data: []byte("1")}, 0, time.Now())
				require.NoError(t, err)
				g.forbid("chat.42")
				if err := call(g, c); name != "publish many" { // it has a result for each message
					require.ErrorIs(t, err, problem.New(wire.CodeForbidden, "", ""))
					require.ErrorContains(t, err, "spam")
				}
				state, _ := g.cfg.Broker.Topic("chat.42")
				if name == "publish many" {
					require.EqualValues(t, 3, state.Position.Offset, "it was not published again")
				}
				time.Sleep(10 * time.Minute)
				require.NoError(t, call(g, c), "it is permitted again")
			}, func(c *Config) {
				c.Presence = presence.New(c.Broker, c.Metrics)
				c.Broker.Reload(broker.Config{Rules: []broker.Rule{{Name: "r", Pattern: "chat.42", Presence: true}}}, time.Now())
			})
		})
	}
}

// A topic is forbidden while a publish to it waits: for its body, or for the hook. It is not made.
func TestATopicIsForbiddenWhileAPublishWaits(t *testing.T) {
	for name, publish := range map[string]func(g *guarded, c Caller, wait func()) error{
		"for the hook": func(g *guarded, c Caller, wait func()) error {
			g.cfg.Hook = meanwhile(wait)
			return g.publish(c, "asked", bodyOf("1"))
		},
		"for its body": func(g *guarded, c Caller, wait func()) error {
			return g.publish(c, "a", func(int) ([]byte, error) { wait(); return []byte("1"), nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			guard(t, func(g *guarded) {
				err := publish(g, g.token("t", time.Hour, ">", auth.Publish), func() { g.forbid("a", "asked") })
				require.ErrorIs(t, err, problem.New(wire.CodeForbidden, "", ""))
				require.False(t, g.cfg.Broker.Has("asked") || g.cfg.Broker.Has("a"))
			}, func(c *Config) { c.Broker.Reload(broker.Config{HookTopics: []string{"asked"}}, time.Now()) })
		})
	}
}

// The list of topics has none that is forbidden.
func TestAForbiddenTopicIsNotListed(t *testing.T) {
	guard(t, func(g *guarded) {
		c := g.token("t", time.Hour, ">", auth.Subscribe)
		for _, topic := range []string{"chat.1", "chat.42"} {
			_, err := g.cfg.Broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
			require.NoError(t, err)
		}
		g.forbid("chat.42")
		var listed []string
		require.NoError(t, g.Topics(t.Context(), c, request.PageOf(""), func(topics iter.Seq[wire.TopicState], _ *string, leave func()) error {
			leave()
			for topic := range topics {
				listed = append(listed, topic.Position.Topic)
			}
			return nil
		}))
		require.Equal(t, []string{"chat.1"}, listed)
	})
}

// The right manage on some topics permits to forbid these, and nothing else. To end sessions needs
// it on all.
func TestWhoMayManage(t *testing.T) {
	guard(t, func(g *guarded) {
		forbidden := problem.New(wire.CodeForbidden, "", "")
		ofChat, ofAll := g.token("chat", time.Hour, "chat.>", auth.Manage), g.token("all", time.Hour, ">", auth.Manage)
		other := g.token("other", time.Hour, ">", auth.Subscribe, auth.Publish, auth.Delete)
		subscriber := g.token("t", time.Hour, ">", auth.Subscribe)
		id := g.open(subscriber, "chat.42")
		end := wire.SubjectRequest{Subject: "ann", End: true, Reason: "bye"}
		forbid := func(topics ...string) wire.SubjectRequest {
			return wire.SubjectRequest{Subject: "ann", Forbid: topics, UntilMS: time.Now().Add(time.Hour).UnixMilli()}
		}
		for _, r := range []wire.SubjectRequest{end, forbid("news"), forbid("chat.42", "news"), forbid(">"), forbid("*.42")} {
			_, err := g.manage(ofChat, r)
			require.ErrorIs(t, err, forbidden)
			require.ErrorContains(t, err, "may not manage the clients of")
			_, err = g.manage(other, r)
			require.ErrorIs(t, err, forbidden)
		}
		require.Equal(t, []string{"chat.42"}, g.topicsOf(id))
		_, err := g.manage(ofAll, forbid("news"))
		require.NoError(t, err)
		result, err := g.manage(ofChat, forbid("chat.*"))
		require.NoError(t, err)
		require.Equal(t, 1, result.Sessions)
		require.Empty(t, g.topicsOf(id))
		_, err = g.manage(ofChat, wire.SubjectRequest{Subject: "ann", Forbid: []string{}})
		require.NoError(t, err)
		require.NotNil(t, g.cfg.Revocations.Forbidden("ann").Find("news"), "only who may manage it lifts it")
		require.Nil(t, g.cfg.Revocations.Forbidden("ann").Find("chat.42"))

		_, err = g.manage(ofAll, forbid(">"))
		require.NoError(t, err)
		result, err = g.manage(ofAll, end)
		require.NoError(t, err, "what is forbidden to the back end itself does not keep it from managing")
		require.Equal(t, 1, result.Sessions)
		_, err = g.cfg.Sessions.Get([]byte(id))
		require.ErrorIs(t, err, problem.New(wire.CodeSessionEnded, "", ""))
		require.ErrorContains(t, err, "bye")
		_, err = g.manage(ofAll, wire.SubjectRequest{Subject: "ann", Forbid: []string{}})
		require.NoError(t, err)
		g.open(subscriber, "chat.42") // her credentials stayed valid
	})
}

// While a call waits for a slot, its topic is forbidden, or its token is revoked. It neither reads
// nor deletes the history.
func TestACallThatWaitsForItsSlotIsCheckedAgain(t *testing.T) {
	changes := map[wire.Code]func(g *guarded){
		wire.CodeForbidden:    func(g *guarded) { g.forbidDirectly("chat.42") },
		wire.CodeUnauthorized: func(g *guarded) { g.revoke("t") },
	}
	for name, call := range map[string]func(g *guarded, c Caller) error{
		"delete": func(g *guarded, c Caller) error {
			return g.DeleteTopic(g.Context(), c, "chat.42", func(wire.TopicState) error { return nil })
		},
		"history": func(g *guarded, c Caller) error {
			h := request.History{Start: wire.Start{Topic: "chat.42", From: wire.FromOldest}, Limit: 1}
			return g.History(g.Context(), c, h, func(_ iter.Seq[[]*frame.Frame], leave func()) error { leave(); return nil })
		},
	} {
		for code, change := range changes {
			guard(t, func(g *guarded) {
				c := g.token("t", time.Hour, ">", auth.AllRights()...)
				g.fill("chat.42", 1)
				holder, err := g.cfg.Limiter.Begin(t.Context(), c.Who, name != "delete")
				require.NoError(t, err)
				answered := make(chan error, 1)
				go func() { answered <- call(g, c) }()
				synctest.Wait()
				require.Empty(t, answered)
				change(g)
				holder.End()
				require.ErrorIs(t, <-answered, problem.New(code, "", ""), name)
				page, ok := g.cfg.Broker.PageBefore("chat.42", wire.Position{}, 1, time.Now())
				require.True(t, ok)
				require.False(t, page.IsEmpty())
			}, func(c *Config) {
				c.Limiter = limit.New(limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Minute}, c.Metrics)
			})
		}
	}
}

// A topic is forbidden while its history is being sent. The rest does not follow, and no done.
func TestATopicIsForbiddenWhileItsHistoryIsSent(t *testing.T) {
	for name, from := range map[string]wire.From{"from the oldest": wire.FromOldest, "the newest": wire.FromNewest} {
		t.Run(name, func(t *testing.T) {
			guard(t, func(g *guarded) {
				c := g.token("t", time.Hour, ">", auth.History)
				g.fill("chat.42", 4)
				pieces := func(then func()) (n int) {
					h := request.History{Start: wire.Start{Topic: "chat.42", From: from}, Limit: 4}
					require.NoError(t, g.History(t.Context(), c, h, func(pieces iter.Seq[[]*frame.Frame], leave func()) error {
						leave()
						for range pieces {
							n++
							then()
						}
						return nil
					}))
					return n
				}
				require.Equal(t, 4, pieces(func() {}))
				require.Equal(t, 1, pieces(func() { g.forbidDirectly("chat.42") }))
			})
		})
	}
}

// fill publishes messages of which one makes a piece of a history.
func (g *guarded) fill(topic string, n int) {
	g.Helper()
	data := []byte(`"` + strings.Repeat("x", PieceBytes-1000) + `"`)
	for range n {
		_, err := g.cfg.Broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: data}, 0, time.Now())
		require.NoError(g, err)
	}
}

// forbidDirectly forbids a topic to ann without a request, which would need a slot.
func (g *guarded) forbidDirectly(topic string) {
	g.Helper()
	mayLift := func(string) bool { return true }
	require.NoError(g, g.cfg.Revocations.Forbid("ann", []string{topic}, time.Now().Add(time.Hour), "spam", mayLift, time.Now()))
}
