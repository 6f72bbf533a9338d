package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// sseStory runs a test with a kit in a synctest bubble.
func sseStory(t *testing.T, s lanetest.Settings, tell func(k *kit)) {
	synctest.Test(t, func(t *testing.T) { tell(newKit(t, s)) })
}

// speak publishes a message to each topic and waits for its delivery.
func (k *kit) speak(topics ...string) {
	k.Helper()
	for _, topic := range topics {
		_, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
		require.NoError(k, err)
		synctest.Wait()
	}
}

// follow returns an eventSource of topics, named as in the URL.
func (k *kit) follow(ids idKind, topics ...string) *eventSource {
	k.Helper()
	e := k.eventSource(url.Values{"topic": topics})
	e.ids = ids
	k.Cleanup(func() { e.leave(); e.cut() })
	return e
}

// Cuts the connection at each byte of a stream's answer in turn. With every kind of ids,
// the client gets each message once, in order, and without a gap.
func TestNothingIsLostWhereverAnEventStreamIsCut(t *testing.T) {
	for _, ids := range []idKind{ofOneTopic, ofSeveral, referring} {
		t.Run(string(ids), func(t *testing.T) {
			sseStory(t, lanetest.Settings{}, func(k *kit) { k.cutEventsEverywhere(ids, false) })
		})
	}
}

func (k *kit) cutEventsEverywhere(ids idKind, lane bool) {
	k.Helper()
	k.cutEverywhere(500, func(at int) bool { return k.cutAnswerAt(at, transport.Stream, true, lane, subscribeToEvents(ids)) })
}

func subscribeToEvents(ids idKind) subscribeFunc {
	return func(s *system, hc *http.Client, start wire.Start) (next func() *wire.Message, leave func()) {
		e := s.kit.eventSource(queryOf(ids, start))
		e.http, e.ids, e.hurries = hc, ids, true
		next = func() *wire.Message {
			c, err := e.nextFrame()
			require.NoError(s, err)
			return c.Message
		}
		return next, func() { e.leave(); e.cut() }
	}
}

// A stream that can never be served is refused with an error status. After that, an
// EventSource does not retry.
func TestAnInvalidEventStreamIsRefused(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		for query, code := range map[string]wire.Code{
			"":                                   wire.CodeInvalidRequest,
			"topic=a..b":                         wire.CodeInvalidTopic,
			"topic=a@17":                         wire.CodeInvalidPosition,
			"topic=a&topic=a":                    wire.CodeInvalidRequest,
			"topic=a&echo=false":                 wire.CodeInvalidRequest,
			"topic=a&max_rate=often":             wire.CodeInvalidRequest,
			"topic=a&last_event_id=17":           wire.CodeInvalidPosition,
			"topic=a&last_event_id=~x:":          wire.CodeInvalidPosition,
			"topic=a&last_event_id=":             "",
			"topic=a&heartbeat=":                 wire.CodeInvalidRequest,
			"topic=a&heartbeat=loud":             wire.CodeInvalidRequest,
			"topic=a&heartbeat=event&heartbeat=": wire.CodeInvalidRequest,
			"topic=" + strings.Repeat("a.", 20):  wire.CodeInvalidTopic,
			"topic=a&last_event_id=a@k3:1,,":     wire.CodeInvalidPosition,
			"topic=a&last_event_id=a@k3:1%0Ax:y": wire.CodeInvalidPosition,
		} {
			if code != "" {
				k.WantProblem(code, "GET", "/v1/sse?"+query, "")
			}
		}
		k.WantProblem(wire.CodeInvalidPosition, "GET", "/v1/sse?topic=a", "", "Last-Event-ID: a@k3:1, b@k3:1")
		k.WantProblem(wire.CodeMethodNotAllowed, "POST", "/v1/sse?topic=a", "")
		k.WantProblem(wire.CodeTooManySubscriptions, "GET", "/v1/sse?topic=a"+manyMore(1000), "")
	})
}

func manyMore(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "&topic=t%d", i)
	}
	return b.String()
}

// A polyfill of EventSource sends the id of the last event in the query. Its id is newer than
// the one that the page wrote there.
func TestAnEventStreamContinuesForAPolyfill(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		k.speak("a", "a", "a", "a")
		id := func(offset int) string { return fmt.Sprintf("a@%s:%d", k.Parts.Broker.Epoch("a"), offset) }
		for _, c := range []struct {
			query  url.Values
			header string
			next   string
		}{
			{url.Values{"lastEventId": {id(1)}}, "", "a2"},
			{url.Values{"lastEventID": {id(1)}}, "", "a2"},
			{url.Values{"Last-Event-ID": {id(1)}}, "", "a2"},
			{url.Values{"evs_last_event_id": {id(1)}}, "", "a2"},
			{url.Values{"lastEventId": {id(1), id(3), id(2)}}, "", "a3"}, // each reconnect has appended one
			{url.Values{"lastEventId": {id(2), ""}}, "", "a3"},
			{url.Values{"lastEventId": {""}}, "", "a1"},
			{url.Values{"last_event_id": {id(1)}, "lastEventId": {id(2)}}, "", "a3"},
			{url.Values{"last_event_id": {id(1)}, "lastEventId": {""}}, "", "a2"},
			{url.Values{"lastEventId": {id(1)}}, id(3), "a4"},
			{url.Values{"lasteventid": {id(1)}, "last-event-id": {"17"}}, "", "a1"}, // unknown parameters are ignored
		} {
			e := k.follow(ofOneTopic, "a@oldest")
			maps.Copy(e.query, c.query)
			e.lastID = c.header
			e.want(c.next)
			e.leave()
		}
		for _, name := range []string{"lastEventId", "Last-Event-ID"} {
			k.WantProblem(wire.CodeInvalidPosition, "GET", "/v1/sse?topic=a&"+name+"=17", "")
			k.WantProblem(wire.CodeInvalidPosition, "GET", "/v1/sse?topic=a&"+name+"="+id(1)+",", "")
		}
	})
}

// A client resumes each topic after its last event. The daemon ignores positions of
// topics that the client does not request.
func TestAnEventStreamContinuesAfterTheLastEvent(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		k.speak("a", "a", "b", "b", "c", "c")
		epoch := k.Parts.Broker.Epoch("a")
		id := strings.ReplaceAll("b@E:1,c@E:1,a@E:1", "E", epoch)
		e := k.follow(ofSeveral, "a@oldest", "b")
		e.query.Set("last_event_id", id)
		e.want("a2", "b2")

		e = k.follow(ofSeveral, "a@oldest", "b")
		e.query.Set("last_event_id", id)
		e.lastID = strings.ReplaceAll("a@E:2", "E", epoch)
		hello := e.hello()
		require.EqualValues(k, 2, hello.Positions[0].Offset)
		require.EqualValues(k, 2, hello.Positions[1].Offset, "a topic that is not named in the header begins as the URL says")
		k.speak("b", "a")
		e.want("b3", "a3")

		e = k.follow(ofOneTopic, "a")
		e.lastID = "a@k3:17"
		e.want("gap(restarted a17-0)", "a1", "a2", "a3")
	})
}

// A client that reconnects gets the messages that it missed from its session. They
// include messages of new topics that match its pattern.
func TestAPatternSurvivesCutEventStreams(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		e := k.follow(referring, "room.*", "a")
		require.NotEmpty(k, e.hello().Session)
		k.speak("room.one", "a", "room.two")
		e.want("room.one1", "a1")
		first := e.session
		e.cut() // the third message is lost on the way
		k.speak("room.three", "room.one", "a")
		e.want("room.two1")
		e.cut()
		e.want("room.three1", "room.one2", "a2")
		require.Equal(k, first, e.session)
		require.EqualValues(k, 6, e.count)
	})
}

func TestAnEventStreamOfManyTopicsRefersToASession(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		topics := make([]string, 1000)
		for i := range topics {
			topics[i] = fmt.Sprintf("many.t%d@oldest", i)
		}
		e := k.follow(referring, topics...)
		e.every = 300 // reconnects after this many events
		require.Len(k, e.hello().Positions, 1000)
		session := e.session
		seen := map[string]bool{}
		for range 2 {
			for i := range topics {
				k.speak(fmt.Sprintf("many.t%d", i))
			}
			for range topics {
				c, err := e.nextFrame()
				require.NoError(k, err)
				require.NotNil(k, c.Message)
				require.False(k, seen[c.Message.Position.String()], "twice")
				seen[c.Message.Position.String()] = true
			}
		}
		require.Len(k, seen, 2000)
		require.Equal(k, session, e.session)
	})
}

// wantToContinue lets clients continue after each of the events, without the session: each
// gets exactly the frames after its event, and then the next message of topic last. ids are
// those of hello and of the frames, which words name.
func (k *kit) wantToContinue(ids, words []string, last string, topics ...string) {
	k.Helper()
	for i, id := range ids {
		_, positions, _ := strings.Cut(id, ",")
		e := k.follow(referring, topics...)
		e.lastID = "~gone.AAAA:0," + positions
		e.hello()
		got := []string{}
		for range words[i:] {
			c, err := e.nextFrame()
			require.NoError(k, err)
			got = append(got, wordOf(c))
		}
		require.Equal(k, byTopic(words[i:]), byTopic(got), "after %s", id)
		k.Publish(last, "1")
		c, err := e.nextFrame()
		require.NoError(k, err)
		words = append(words, wordOf(c))
		require.Contains(k, byTopic(words[len(words)-1:]), last)
		e.leave()
		e.cut()
		k.endSession(e.session)
	}
}

// byTopic groups words, in their order: between topics, history has none.
func byTopic(words []string) map[string][]string {
	all := map[string][]string{}
	for _, word := range words {
		topic := strings.TrimRight(word, "0123456789")
		all[topic] = append(all[topic], word)
	}
	return all
}

// The ids of events of patterns have positions, which are those of the event. So a client
// whose session is gone gets what follows its last event, whichever that is.
func TestAnEventStreamOfPatternsContinuesWithoutItsSession(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		k := serveLane(t, way, lanetest.Settings{}, nil)
		for _, topic := range []string{"room.old", "room.old", "other.x", "oldest.one"} {
			k.Publish(topic, "1")
		}
		topics := []string{"room.*", "room.named@oldest", "a", "oldest.>@oldest"}
		e := k.follow(referring, topics...)
		e.hello()
		ids, words := []string{e.lastID}, []string{}
		want := func(word string) {
			words = append(words, word)
			e.want(word)
			ids = append(ids, e.lastID)
		}
		want("oldest.one1")
		for i, word := range []string{"room.new1", "a1", "room.old3", "room.new2", "room.named1", "oldest.one2", "oldest.two1", "room.late1", "a2", "room.new3"} {
			k.Publish(word[:len(word)-1], "1")
			want(word)
			if i == 4 {
				k.Publish("other.x", "1")
				e.cut() // the session continues, and so do its ids
			}
		}
		k.wantToContinue(ids, words, "a", topics...)
	}
}

// onlyAnn is an authority for which every caller is ann, with every right.
type onlyAnn struct{ auth.Open }

func (onlyAnn) Identify(auth.Credentials, bool) (*auth.Grant, error) {
	return &auth.Grant{Subject: "ann", Rights: auth.Everything}, nil
}

// A topic of a pattern is forbidden, and permitted again. Its position stays in the ids over
// reconnects to the session, which leaves the topic out, so a new session continues after it.
func TestAnEventIDKeepsThePositionOfAForbiddenTopic(t *testing.T) {
	revocations := openRevocations(t)
	forbid := func(topics ...string) {
		mayLift := func(string) bool { return true }
		require.NoError(t, revocations.Forbid("ann", topics, time.Now().Add(time.Hour), "spam", mayLift, time.Now()))
	}
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		k := serveLane(t, way, lanetest.Settings{Authority: onlyAnn{}, Revoked: revocations}, nil)
		e := k.follow(referring, "chat.*")
		e.hello()
		k.Publish("chat.42", "1")
		e.want("chat.421")
		forbid("chat.42")
		k.Parts.Sessions.Forbid("ann")
		e.want("gap(forbidden chat.421-1)")
		was := e.session
		keeps := func() {
			t.Helper()
			e.cut()
			hello := e.hello()
			require.Equal(t, was, hello.Session)
			var named int
			for _, p := range hello.Positions {
				if p.Topic == "chat.42" {
					named++
					require.EqualValues(t, 1, p.Offset)
				}
			}
			require.Equal(t, 1, named)
			require.Contains(t, e.lastID, ",chat.42@")
		}
		keeps()
		_, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "chat.42"}, Data: []byte("2")}, 0, time.Now()) // by another
		require.NoError(t, err)
		keeps()
		forbid()
		keeps()
		k.Parts.Sessions.EndSubject("ann", "")
		e.cut()
		e.want("chat.422")
	}
}

// A pattern's position in the ids rises with the topics that the daemon forgets, once the
// client has had them, and not before a gap that announces others.
func TestAnEventIDHasThePresentPositionOfAPattern(t *testing.T) {
	sseStory(t, lanetest.Settings{Session: session.Config{Unacked: 1}, Broker: broker.Config{HistoryAge: 5 * time.Second}}, func(k *kit) {
		forget := func(topic string) {
			time.Sleep(6 * time.Second)
			k.Parts.Broker.Sweep(time.Now())
			require.False(k, k.Parts.Broker.Has(topic))
		}
		k.speak("job.missed")
		forget("job.missed")
		topics := []string{"job.*@" + k.Parts.Broker.Epoch("job.*") + ":0", "x"}
		e := k.follow(referring, topics...)
		e.hello()
		ids := []string{e.lastID}
		e.want("gap(evicted job.*0-1)")
		ids = append(ids, e.lastID)
		wantMessage := func() {
			c, err := e.nextFrame()
			require.NoError(k, err)
			require.NotNil(k, c.Message)
		}
		k.wantToContinue(ids, []string{"gap(evicted job.*0-1)"}, "x", topics...)
		for range ids {
			wantMessage() // of x
		}

		for i := range 10 {
			topic := fmt.Sprintf("job.%d", i)
			k.speak(topic, "x")
			wantMessage()
			wantMessage() // acks the one before
			forget(topic)
		}
		k.speak("x")
		wantMessage()
		require.Contains(k, strings.Split(e.lastID, ","), k.Parts.Broker.PatternPosition("job.*").String())
		k.wantToContinue([]string{e.lastID}, nil, "x", topics...)
	})
}

// A client may name only so many topics. An id with more is one without positions: a refusal
// would stop the EventSource.
func TestAnEventIDWithMorePositionsThanAClientMayName(t *testing.T) {
	sseStory(t, lanetest.Settings{Session: session.Config{Subscriptions: 2, PatternBytes: 3 * broker.BytesOf("a.x")}}, func(k *kit) {
		k.speak("a.x")
		epoch := k.Parts.Broker.Epoch("a.x")
		for n, want := range map[int]string{7: "a.x2", 8: "gap(restarted a.*0-0)"} {
			e := k.follow(referring, "a.*")
			e.lastID = fmt.Sprintf("~gone.AAAA:1,a.*@%s:0,a.x@%s:1", epoch, epoch)
			for i := range n - 2 {
				e.lastID += fmt.Sprintf(",a.forgotten-%d@%s:1", i, epoch)
			}
			e.hello()
			if n == 7 {
				k.speak("a.x")
			}
			e.want(want)
			e.leave()
			e.cut()
			k.endSession(e.session)
		}
	})
}

// The rate of new topics holds for those that an id would create. Forgotten topics are not
// created again.
func TestTheRateOfNewTopicsHoldsForEventIDs(t *testing.T) {
	rates := limit.Rates{limit.Topics: {limit.All: {PerSecond: 0.1, Burst: 1}}}
	sseStory(t, lanetest.Settings{Limits: limit.Config{Rates: rates}}, func(k *kit) {
		epoch := k.Parts.Broker.Epoch("a.x")
		status, answer := k.Refused("topic=a.*", "~gone.AAAA:1,a.*@"+epoch+":0,a.one@k3:1,a.two@k3:1")
		require.Equal(k, http.StatusOK, status)
		require.Contains(k, answer, `"limited"`)
		require.False(k, k.Parts.Broker.Has("a.one"))
		e := k.follow(referring, "a.*")
		e.lastID = strings.ReplaceAll("~gone.AAAA:1,a.*@E:0,a.one@E:1,a.two@E:1", "E", epoch)
		require.Len(k, e.hello().Positions, 1)
		require.False(k, k.Parts.Broker.Has("a.one"))
	})
}

// Ids are shorter than 2 KiB: with many topics they are references alone.
func TestAnEventIDWithTooManyPositionsIsAReference(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		e := k.follow(referring, "many.*")
		e.hello()
		longest := 0
		for i := range 100 {
			topic := fmt.Sprintf("many.topic-%d", i)
			k.speak(topic)
			e.want(topic + "1")
			longest = max(longest, len(e.lastID))
		}
		require.Equal(k, fmt.Sprintf("~%s:100", e.session), e.lastID)
		require.Greater(k, longest, 2000)
		e.cut() // hello has all topics
		e.hello()
		require.Equal(k, fmt.Sprintf("~%s:100", e.session), e.lastID)
	})
}

// The daemon does not know what the client of an ended session has received, if its id has no
// positions. Each topic announces a gap and continues with all of its history.
func TestAnEventIDOfAnEndedSessionGivesGaps(t *testing.T) {
	for name, c := range map[string]struct {
		settings lanetest.Settings
		lose     func(k *kit, e *eventSource)
	}{
		"inactive": {lanetest.Settings{Session: session.Config{InactivityTimeout: time.Minute}}, func(k *kit, e *eventSource) {
			e.lastID = referenceOf(e.lastID)
			time.Sleep(2 * time.Minute)
			k.Parts.Sessions.Sweep(time.Now())
		}},
		"beyond its window": {lanetest.Settings{Session: session.Config{Unacked: 1}}, func(k *kit, e *eventSource) {
			e.lastID = fmt.Sprintf("~%s:0", e.session)
		}},
		"of another daemon": {lanetest.Settings{}, func(k *kit, e *eventSource) { e.lastID = "~elsewhere.AAAA:7" }},
		"never sent":        {lanetest.Settings{}, func(k *kit, e *eventSource) { e.lastID = fmt.Sprintf("~%s:99", e.session) }},
		"keeps nothing": {lanetest.Settings{}, func(k *kit, e *eventSource) {
			e.lastID = fmt.Sprintf("~%s:0", k.Open(`{"topics":["a"],"ack":false}`).Session)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			sseStory(t, c.settings, func(k *kit) {
				e := k.follow(referring, "a", "b", "x.>")
				e.hello()
				k.speak("a", "b", "a")
				e.want("a1", "b1", "a2")
				first := e.session
				e.cut()
				synctest.Wait()
				c.lose(k, e)
				require.NotEqual(k, first, e.hello().Session)
				got := map[string][]string{}
				for range 6 {
					c, err := e.nextFrame()
					require.NoError(k, err)
					p := position(c)
					word := "message"
					if c.Gap != nil {
						word = string(c.Gap.Reason)
					}
					got[p.Topic] = append(got[p.Topic], word)
				}
				require.Equal(k, map[string][]string{"a": {"restarted", "message", "message"}, "b": {"restarted", "message"}, "x.>": {"restarted"}}, got)
			})
		})
	}
}

// An EventSource attaches to a session that was opened and polled before. Its ids are the
// same as those of a stream whose last event refers to the session. Afterwards the session
// is polled again. Nothing is lost or repeated.
func TestAnEventStreamAttachesToAnOpenSession(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		id := k.OpenA()
		k.speak("a", "a", "a")
		polled := func(ack int) string {
			_, text := k.Get("GET", fmt.Sprintf("/v1/sessions/%s/poll?ack=%d&mode=single", id, ack), "")
			return text
		}
		require.Contains(k, polled(0), ":1\"")
		e := k.eventSource(attaching(id, 1))
		e.ids = attached
		require.Equal(k, id, e.hello().Session)
		require.Equal(k, "~"+id+":1", e.lastID)
		e.want("a2", "a3")
		_, err := k.changeSession(id, []wire.Start{{Topic: "b"}}, nil)
		require.NoError(k, err)
		k.speak("b")
		e.want("b1")

		e.cut()
		k.speak("a")
		e.lastID = fmt.Sprintf("~%s:%d", id, 2) // and so the header beats ack=1
		e.want("a3", "b1", "a4")
		e.leave()
		e.cut()
		synctest.Wait()
		require.Contains(k, polled(4), ":4\"")

		again := k.eventSource(url.Values{"topic": {"x.>"}, "last_event_id": {"~" + id + ":5"}})
		again.ids = referring
		defer func() { again.leave(); again.cut() }()
		require.Equal(k, id, again.hello().Session, "another way to name the same")
		require.Equal(k, "~"+id+":5", referenceOf(again.lastID))
	})
}

// A session without acks is attached without ack.
func TestAnEventStreamAttachesToASessionWithoutAcks(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		id := k.Open(`{"topics":["a"],"ack":false}`).Session
		e := k.eventSource(url.Values{"session": {id}})
		e.ids = attached
		defer func() { e.leave(); e.cut() }()
		e.hello()
		k.speak("a", "a")
		e.want("a1", "a2")
		e.cut()
		synctest.Wait()
		k.speak("a")
		e.want("a3")
	})
}

// A stream that names a session cannot begin anew without it. So each problem of the
// session has its status, which stops the EventSource.
func TestAnEventStreamIsNotAttached(t *testing.T) {
	sseStory(t, lanetest.Settings{Session: session.Config{InactivityTimeout: time.Minute}}, func(k *kit) {
		inactive := k.OpenA()
		time.Sleep(2 * time.Minute)
		k.Parts.Sessions.Sweep(time.Now())
		id := k.OpenA()
		k.speak("a", "a")
		k.Get("GET", "/v1/sessions/"+id+"/poll?ack=0", "")
		k.Get("GET", "/v1/sessions/"+id+"/poll?ack=1&mode=single", "")
		at := "/v1/sse?session=" + id
		for query, code := range map[string]wire.Code{
			at:                                  wire.CodeInvalidRequest,
			at + "&ack=one":                     wire.CodeInvalidRequest,
			at + "&ack=-1":                      wire.CodeInvalidRequest,
			at + "&ack=1&ack=1":                 wire.CodeInvalidRequest,
			at + "&ack=1&topic=a":               wire.CodeInvalidRequest,
			at + "&ack=1&client=me":             wire.CodeInvalidRequest,
			at + "&ack=1&session=" + id:         wire.CodeInvalidRequest,
			at + "&ack=0":                       wire.CodeStaleAck,
			at + "&ack=3":                       wire.CodeAckBeyondSent,
			at + "&last_event_id=~" + id + ":3": wire.CodeAckBeyondSent,
			at + "&last_event_id=a@k3:1":        wire.CodeInvalidPosition,
			at + "&last_event_id=~" + inactive + ":1": wire.CodeInvalidPosition,
			"/v1/sse?session=nobody&ack=0":            wire.CodeSessionUnknown,
			"/v1/sse?session=%0Adata:%20x&ack=0":      wire.CodeInvalidPosition,
			"/v1/sse?session=" + inactive + "&ack=0":  wire.CodeSessionEnded,
		} {
			k.WantProblem(code, "GET", query, "")
		}
		k.WantProblem(wire.CodeInvalidPosition, "GET", at+"&ack=1", "", "Last-Event-ID: a@k3:1")
		k.WantProblem(wire.CodeInvalidPosition, "GET", at+"&ack=1", "", "Last-Event-ID: ~"+inactive+":1")
		k.WantProblem(wire.CodeStaleAck, "GET", at+"&ack=1", "", "Last-Event-ID: ~"+id+":0")

		e := k.eventSource(attaching(id, 1))
		e.ids = attached
		defer func() { e.leave(); e.cut() }()
		e.want("a2")
		k.endSession(id)
		_, err := e.nextFrame()
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionEnded})
		_, err = e.next()
		require.EqualError(k, err, "stopped at status 204")
	})
}

// A refusal that may pass is sent within the stream. It repeats what the client has, in the
// form of an event id.
func TestAnAttachingEventSourceRetries(t *testing.T) {
	rates := limit.Rates{limit.Polls: {limit.All: {PerSecond: 0.1, Burst: 1}}}
	sseStory(t, lanetest.Settings{Limits: limit.Config{Rates: rates}}, func(k *kit) {
		k.Get("GET", "/v1/poll?topic=a", "")
		id := k.OpenA()
		status, answer := k.Refused("session="+id+"&ack=7", "")
		require.Equal(k, http.StatusOK, status)
		require.Contains(k, answer, "\nid: ~"+id+":7\n")
		_, answer = k.Refused("session=%0Adata:%20x&ack=7", "")
		require.Regexp(k, `^retry: \d+\nevent: end\ndata: `, answer, "nothing is given back that was not read")
		k.Parts.Sessions.BeginDrain(lanetest.GoingAway()).End(math.MaxInt)
		status, answer = k.Refused("session="+id+"&ack=0", "")
		require.Equal(k, http.StatusOK, status)
		require.Contains(k, answer, `"draining"`)
	})
}

// The bound on unacknowledged frames does not stop a client that never reconnects: the
// window slides.
func TestAnEventStreamWithASessionNeedsNoAcks(t *testing.T) {
	sseStory(t, lanetest.Settings{Session: session.Config{Unacked: 8}}, func(k *kit) {
		e := k.follow(referring, "a", "x.>")
		e.hello()
		for n := 1; n <= 50; n++ {
			k.speak("a")
			e.want(fmt.Sprintf("a%d", n))
		}
		e.cut()
		k.speak("a")
		e.want("a51")
	})
}

// After its page has closed its session, an EventSource gets 204 and does not reconnect.
func TestAnEventSourceStopsAfterItsSessionIsClosed(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		e := k.follow(referring, "a", "x.>")
		e.hello()
		status, _ := k.Get("DELETE", "/v1/sessions/"+e.session, "")
		require.Equal(k, http.StatusNoContent, status)
		_, err := e.nextFrame()
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionEnded}, "the end of the stream that was")
		_, err = e.next()
		require.EqualError(k, err, "stopped at status 204")
	})
}

// An overloaded daemon refuses within an event stream, so that the client retries with
// its last event id.
func TestAnEventSourceRetriesAfterOverload(t *testing.T) {
	sseStory(t, lanetest.Settings{Session: session.Config{MaxSessions: 1}}, func(k *kit) {
		e, other := k.follow(ofSeveral, "a", "b"), k.follow(ofOneTopic, "a")
		e.hello()
		k.speak("a")
		e.want("a1")
		e.cut()
		synctest.Wait()
		other.hello()
		for range 3 {
			_, err := e.nextFrame()
			require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
			require.True(k, time.Second <= e.retry && e.retry <= 2*time.Second, "%s", e.retry)
		}
		k.speak("a", "b")
		other.cut()
		synctest.Wait()
		e.want("a2", "b1")

		status, answer := k.Refused("topic=a", "")
		require.Equal(k, http.StatusOK, status)
		require.Regexp(k, `^retry: \d+\nevent: end\ndata: `, answer, "a client that is new has no id to be given again")
	})
}

func TestALimitedEventSourceRetries(t *testing.T) {
	rates := limit.Rates{limit.Polls: {limit.All: {PerSecond: 0.1, Burst: 1}}}
	sseStory(t, lanetest.Settings{Limits: limit.Config{Rates: rates}}, func(k *kit) {
		k.Get("GET", "/v1/poll?topic=a", "")
		status, answer := k.Refused("topic=a", "a@k3:1")
		require.Equal(k, http.StatusOK, status)
		require.Regexp(k, `^retry: 1\d{4}\nevent: end\ndata: \{"end":\{.*"code":"limited".*\}\}\nid: a@k3:1\n\n$`, answer)
		_, answer = k.Refused("topic=a", "malformed")
		require.Regexp(k, `^retry: \d+\nevent: end\ndata: `, answer, "nothing is given back that was not read")
		k.WantProblem(wire.CodeLimited, "GET", "/v1/poll?topic=a", "")
	})
}

// While the daemon drains, it ends streams one by one and refuses new ones. Each end
// frame repeats the client's last event id.
func TestADrainEndsEventStreams(t *testing.T) {
	for _, ids := range []idKind{ofOneTopic, ofSeveral, referring} {
		t.Run(string(ids), func(t *testing.T) {
			sseStory(t, lanetest.Settings{}, func(k *kit) {
				e := k.eventSource(queryOf(ids, wire.Start{Topic: "a"}))
				e.ids = ids
				defer e.leave()
				e.hello()
				k.speak("a")
				e.want("a1")
				going := lanetest.GoingAway()
				going.RetryAfterMS = 5000
				k.Parts.Sessions.BeginDrain(going).End(math.MaxInt)
				for range 2 { // first from the stream, then from a refused reconnect
					_, err := e.nextFrame()
					require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeDraining})
					require.True(k, 5*time.Second <= e.retry && e.retry <= 10*time.Second, "%s", e.retry)
				}
			})
		})
	}
}

func TestAQuietEventStreamSendsHeartbeats(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		resp := k.Do("GET", "/v1/sse?topic=a", "")
		defer resp.Body.Close()
		begun := time.Now()
		lines := bufio.NewReader(resp.Body)
		for text := ""; text != "\n"; { // reads to the end of hello
			var err error
			text, err = lines.ReadString('\n')
			require.NoError(k, err)
		}
		beats := make([]byte, 6)
		_, err := io.ReadFull(lines, beats)
		require.NoError(k, err)
		require.Equal(k, ":\n\n:\n\n", string(beats))
		require.Equal(k, 2*lanetest.Defaults.Heartbeat, time.Since(begun))
	})
}

// A page sees heartbeats that are events. They have no id and do not count, so the client
// resumes as without them. That holds for each kind of ids.
func TestAHeartbeatCanBeAnEvent(t *testing.T) {
	for _, ids := range []idKind{ofOneTopic, ofSeveral, referring} {
		t.Run(string(ids), func(t *testing.T) {
			sseStory(t, lanetest.Settings{}, func(k *kit) {
				e := k.eventSource(queryOf(ids, wire.Start{Topic: "a"}))
				e.ids = ids
				e.query.Set("heartbeat", "event")
				defer func() { e.leave(); e.cut() }()
				e.hello()
				begun := time.Now()
				for n := 1; n <= 3; n++ {
					k.speak("a")
					e.want(fmt.Sprintf("a%d", n))
					for range 2 {
						e.wantHeartbeat()
					}
					if n == 2 {
						had := e.lastID
						e.cut()
						e.hello()
						require.Equal(k, had, e.lastID)
					}
				}
				require.Equal(k, 6*lanetest.Defaults.Heartbeat, time.Since(begun))
			})
		})
	}
}

// The daemon notices that a client has left and removes its subscriptions. A session that
// event ids refer to stays for a while.
func TestAClientThatLeavesItsEventStreamIsNoticed(t *testing.T) {
	for ids, left := range map[idKind]int{ofOneTopic: 0, ofSeveral: 0, referring: 1} {
		t.Run(string(ids), func(t *testing.T) {
			sseStory(t, lanetest.Settings{}, func(k *kit) {
				e := k.eventSource(queryOf(ids, wire.Start{Topic: "a"}))
				e.ids = ids
				e.hello()
				synctest.Wait()
				e.leave()
				e.cut()
				synctest.Wait()
				require.EqualValues(k, 1, k.Counted("pubsubd_polls_total", "sse", "gone"))
				var g metrics.Gauges
				k.Parts.Broker.Gauges(&g)
				require.Equal(k, left, g.Subscriptions)
			})
		})
	}
}

// A page of an allowed origin may read the stream without a preflight.
func TestAnEventStreamMayBeReadByPagesOfAllowedOrigins(t *testing.T) {
	sseStory(t, lanetest.Settings{Origins: []string{"https://app.example"}}, func(k *kit) {
		resp := k.Do("GET", "/v1/sse?topic=a", "", "Origin: https://app.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors")
		defer resp.Body.Close()
		require.Equal(k, http.StatusOK, resp.StatusCode)
		require.Equal(k, "https://app.example", resp.Header.Get("Access-Control-Allow-Origin"))
		require.Equal(k, "no", resp.Header.Get("X-Accel-Buffering"))
		require.Equal(k, "no-store, no-transform", resp.Header.Get("Cache-Control"))
	})
}

// An event stream accepts the options of a subscription: echo and max_rate.
func TestAnEventStreamHasNoEchoAndARate(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		e := k.follow(ofSeveral, "a", "b")
		e.query.Set("client", "me")
		e.query.Set("echo", "false")
		e.hello()
		for _, client := range []string{"me", "you", "me"} {
			k.publishAs("a", client)
		}
		k.publishAs("b", "you")
		e.want("a2", "b1")

		e = k.follow(ofOneTopic, "c")
		e.query.Set("max_rate", "1/s")
		e.hello()
		k.speak("c", "c", "c")
		e.want("c1", "gap(conflated c1-2)", "c3")
	})
}

// An event id has a position for each topic and stays below its size limit.
func TestEventIDsAreBounded(t *testing.T) {
	sseStory(t, lanetest.Settings{}, func(k *kit) {
		topics := make([]string, 0, 100)
		starts := []wire.Start{}
		for i := 0; ; i++ {
			start := wire.Start{Topic: fmt.Sprintf("a.topic-%d", i)}
			if transport.NeedSession(append(starts, start)) {
				break
			}
			starts, topics = append(starts, start), append(topics, start.Topic)
		}
		require.Greater(k, len(topics), 40)
		e := k.follow(ofSeveral, topics...)
		e.hello()
		for range 12 {
			k.speak(topics...)
			for range topics {
				_, err := e.nextFrame()
				require.NoError(k, err)
				require.Less(k, len(e.lastID), 2<<10)
			}
		}
		e.cut()
		k.speak(topics[0])
		e.want(topics[0] + "13")
		e = k.follow(referring, append(topics, "one.more")...)
		require.NotEmpty(k, e.hello().Session)
	})
}

// net/http serves HTTP/2, where an event stream is one of several streams on a
// connection.
func TestEventsComeOneByOneOverHTTP2(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	api := newAPI(cfg)
	server := httptest.NewUnstartedServer(api)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer api.Wait() // Close does not wait over HTTP/2
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v1/sse?topic=a&topic=b", nil)
	require.NoError(t, err)
	resp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 2, resp.ProtoMajor)
	k := &kit{Kit: &lanetest.Kit{TB: t, Parts: cfg}, api: api}
	e := k.eventSource(url.Values{"topic": {"a", "b"}})
	defer e.leave()
	e.ids, e.body, e.lines = ofSeveral, resp.Body, bufio.NewReader(resp.Body)
	e.hello()
	for n := 1; n <= 3; n++ {
		_, err := cfg.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, time.Now())
		require.NoError(t, err)
		e.want(fmt.Sprintf("a%d", n))
	}
}

// An EventSource does not reconnect after a status other than 200. So the daemon sends
// temporary refusals with status 200.
func TestAnEventSourceReconnectsAfterRefusalsThatMayPass(t *testing.T) {
	may := map[wire.Code]bool{
		wire.CodeStaleAck: true, wire.CodePollReplaced: true, wire.CodeSessionEnded: true, wire.CodeLimited: true,
		wire.CodeOverloaded: true, wire.CodeDraining: true, wire.CodeHookFailed: true, wire.CodeInternal: true,
	}
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	api := newAPI(cfg)
	for code := range problem.Codes() {
		reconnects := func(path string) bool {
			w := httptest.NewRecorder()
			ended := api.endEventStream(w, httptest.NewRequest(http.MethodGet, path, nil), problem.New(code, "", ""))
			require.Equal(t, ended, w.Body.Len() > 0, code)
			return ended
		}
		require.Equal(t, may[code], reconnects(ssePath), code)
		require.False(t, reconnects("/v1/poll"), code)
		ofSession := code == wire.CodeStaleAck || code == wire.CodePollReplaced || code == wire.CodeSessionEnded
		require.Equal(t, may[code] && !ofSession, reconnects(ssePath+"?session=s1&ack=0"), code)
	}
}
