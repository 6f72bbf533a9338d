package httpapi

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// names is an authority whose tokens are names. Everyone with a name may do everything;
// without one the kit may publish to lane.taken. The token bad is not valid. ann/300 expires
// after 300 ms, ann/weak is older and has no rights, and ann/new is newer.
type names struct {
	auth.Open
	grants map[string]*auth.Grant
	nobody *auth.Grant
}

func newNames(t *testing.T) names {
	n := names{grants: make(map[string]*auth.Grant), nobody: &auth.Grant{}}
	rights, err := auth.ParseRights([]byte(`[{"topics":[">"],"allow":["subscribe","publish","history","presence","delete"]}]`), "")
	require.NoError(t, err)
	n.nobody.Rights, err = auth.ParseRights([]byte(`[{"topics":["lane.>"],"allow":["publish"]}]`), "")
	require.NoError(t, err)
	now := time.Now()
	for _, token := range []string{"ann", "bob"} {
		n.grants[token] = &auth.Grant{Subject: token, Rights: rights, Issued: now, Expires: now.Add(time.Hour)}
	}
	n.grants["ann/weak"] = &auth.Grant{Subject: "ann", Issued: now.Add(-time.Minute), Expires: now.Add(time.Hour)}
	n.grants["ann/new"] = &auth.Grant{Subject: "ann", Rights: rights, Issued: now.Add(time.Minute), Expires: now.Add(2 * time.Hour)}
	n.grants["ann/300"] = &auth.Grant{Subject: "ann", Rights: rights, Issued: now.Add(-time.Second), Expires: now.Add(300 * time.Millisecond)}
	return n
}

func (n names) Identify(c auth.Credentials, _ bool) (*auth.Grant, error) {
	if c == (auth.Credentials{}) {
		return n.nobody, nil
	}
	if g := n.grants[strings.TrimPrefix(c.Authorization, "Bearer ")+c.Token]; g != nil {
		return g, nil
	}
	return nil, problem.New(wire.CodeUnauthorized, "get another", "the token is not valid")
}

const (
	asAnn = "Authorization: Bearer ann"
	asBob = "Authorization: Bearer bob"
)

// A session's id permits to receive, to ack and to close, and nothing else. Credentials of
// another principal do not get in with it.
func TestASessionIDIsATicketToReceive(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, lanetest.Settings{Authority: newNames(t), Session: lanetest.LongStay()}, nil)
		id := k.Open(`{"topics":["a@oldest"]}`, asAnn).Session
		k.Get("POST", "/v1/topics/a/messages", "1", lanetest.JSONType, asAnn)
		receive := [][3]string{
			{"GET", "/v1/sessions/ID/poll?ack=0", ""},
			{"GET", "/v1/sessions/ID/poll?ack=0&mode=batch", ""},
			{"DELETE", "/v1/sessions/ID", ""},
		}
		for _, c := range append([][3]string{{"GET", "/v1/sse?session=ID&ack=0", ""}, {"POST", "/v1/sessions/ID/close", ""}, {"PATCH", "/v1/sessions/ID", "{}"}, {"GET", "/v1/sessions/ID", ""}}, receive...) {
			path := strings.ReplaceAll(c[1], "ID", id)
			k.WantProblem(wire.CodeForbidden, c[0], path, c[2], lanetest.JSONType, asBob)
			k.WantProblem(wire.CodeUnauthorized, c[0], path, c[2], lanetest.JSONType, "Authorization: Bearer bad")
			k.WantProblem(wire.CodeUnauthorized, c[0], path, c[2], lanetest.JSONType, "Authorization: Basic ann")
		}
		_, err := k.TryDialSocket("/v1/ws?session=" + id + "&ack=0&token=bob")
		require.ErrorIs(t, err, problem.New(wire.CodeForbidden, "", ""))

		k.WantProblem(wire.CodeUnauthorized, "PATCH", "/v1/sessions/"+id, `{"add":["b"]}`, lanetest.JSONType)
		k.WantProblem(wire.CodeUnauthorized, "GET", "/v1/sessions/"+id, "") // it names the topics
		_, state := k.Get("GET", "/v1/sessions/"+id, "", asAnn)
		require.Contains(t, state, `"topic":"a"`)
		status, _ := k.Get("PATCH", "/v1/sessions/"+id, `{"add":["b"]}`, lanetest.JSONType, asAnn)
		require.Equal(t, http.StatusOK, status)
		k.WantProblem(wire.CodeUnauthorized, "POST", "/v1/topics/a/messages?session="+id, "1", lanetest.JSONType)
		k.WantProblem(wire.CodeForbidden, "POST", "/v1/topics/a/messages?session="+id, "1", lanetest.JSONType, asBob)
		for _, c := range receive {
			status, text := k.Get(c[0], strings.ReplaceAll(c[1], "ID", id), c[2])
			require.Less(t, status, 300, text)
		}
	})
}

// A two-way connection that came with a session's id alone receives and acks. It publishes
// and subscribes after it has sent a token of the session's principal, with the rights of that
// token: the session's own rights are not lent.
func TestATwoWayConnectionByTicketAuthenticates(t *testing.T) {
	for _, by := range []string{"WebSocket", "WebSocket in CBOR", "TCP"} {
		t.Run(by, func(t *testing.T) {
			lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
				k := serveLane(t, way, lanetest.Settings{Authority: newNames(t)}, nil)
				id := k.Open(`{"topics":["a"]}`, asAnn).Session
				c := k.Commander(by, id)
				ref := uint64(0)
				do := func(command wire.Command) wire.Reply {
					ref++
					command.Ref = &ref
					c.Send(command)
					return c.WantReply(ref)
				}
				want := func(code wire.Code, command wire.Command) {
					t.Helper()
					reply := do(command)
					require.NotNil(t, reply.Problem)
					require.Equal(t, code, reply.Problem.Code)
				}
				ack, publish := uint64(0), wire.Command{Publish: lanetest.Item("b", "1")}
				want(wire.CodeUnauthorized, publish)
				want(wire.CodeUnauthorized, wire.Command{Publish: lanetest.Item("lane.b", "1")}) // not even what everyone may do
				want(wire.CodeUnauthorized, wire.Command{Subscribe: []wire.Start{{Topic: "b"}}})
				want(wire.CodeUnauthorized, wire.Command{Unsubscribe: []string{"a"}})
				require.Nil(t, do(wire.Command{Ack: &ack}).Problem)
				require.Nil(t, do(wire.Command{Ping: true}).Problem)
				want(wire.CodeForbidden, wire.Command{Auth: "bob"})
				want(wire.CodeUnauthorized, wire.Command{Auth: "bad"})
				want(wire.CodeUnauthorized, publish)
				require.Nil(t, do(wire.Command{Auth: "ann/weak"}).Problem)
				want(wire.CodeForbidden, publish)
				reply := do(wire.Command{Auth: "ann"})
				require.Nil(t, reply.Problem)
				require.InDelta(t, time.Hour.Milliseconds(), reply.ExpiresMS, 60_000)
				require.Nil(t, do(publish).Problem)
				status, text := k.Get("PATCH", "/v1/sessions/"+id, "{}", lanetest.JSONType, "Authorization: Bearer ann/new")
				require.Equal(t, http.StatusOK, status, text)
				require.Nil(t, do(wire.Command{Auth: "ann/weak"}).Problem)
				require.Nil(t, do(publish).Problem, "an older token changes neither the connection nor the session")
				require.Nil(t, do(wire.Command{Subscribe: []wire.Start{{Topic: "b"}}, Unsubscribe: []string{"a"}}).Problem)
				want(wire.CodeForbidden, wire.Command{Auth: "bob"})
				require.Nil(t, do(publish).Problem)
			})
		})
	}
}

// Each way to send a token is as good as the others.
func TestEveryCarrierOfATokenWorks(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, lanetest.Settings{Authority: newNames(t)}, nil)
		for _, path := range []string{"/v1/poll?topic=a@oldest", "/v1/sse?topic=a@oldest"} {
			k.WantProblem(wire.CodeUnauthorized, "GET", path, "")
			k.WantProblem(wire.CodeUnauthorized, "GET", path+"&token=bad", "")
			k.WantProblem(wire.CodeInvalidRequest, "GET", path+"&token=ann&token=ann", "", asAnn)
			k.WantProblem(wire.CodeInvalidRequest, "GET", path+"&token=ann", "", asAnn)
			k.WantProblem(wire.CodeInvalidRequest, "GET", path+"&token=", "", asAnn)
			k.WantProblem(wire.CodeInvalidRequest, "GET", path, "", asAnn, asAnn)
		}
		k.Get("POST", "/v1/topics/a/messages", "1", lanetest.JSONType, asAnn)
		status, text := k.Get("GET", "/v1/poll?topic=a@oldest&%74oken=ann", "")
		require.Equal(t, http.StatusOK, status, text)
		for _, c := range [][3]string{
			{"GET", "/v1/topics?token=ann"}, {"GET", "/v1/topics/a?token=ann"}, {"GET", "/v1/topics?%74oken=ann"}, {"GET", "/v1/topics?token=%zz"},
			{"POST", "/v1/topics/a/messages?token=ann", "1"}, {"POST", "/v1/sessions?token=ann", "{}"}, {"POST", "/v1/poll?token=ann", `{"topics":["a"]}`},
		} {
			k.WantProblem(wire.CodeInvalidRequest, c[0], c[1], c[2], lanetest.JSONType, asAnn)
		}
		_, err := k.TryDialSocket("/v1/ws?topic=a")
		require.ErrorIs(t, err, problem.New(wire.CodeUnauthorized, "", ""))
		s := k.DialSocket("/v1/ws?topic=a&token=ann")
		require.InDelta(t, time.Hour.Milliseconds(), s.Hello().ExpiresMS, 60_000)
		s.Close()

		for offer, want := range map[string]int{
			"pubsubd.v1, bearer.ann": http.StatusSwitchingProtocols, "bearer.ann,pubsubd.v1": http.StatusSwitchingProtocols,
			"pubsubd.v1, bearer.bad": http.StatusUnauthorized, "pubsubd.v1": http.StatusUnauthorized, "pubsubd.v1, Bearer.ann": http.StatusUnauthorized,
			"pubsubd.v1, bearer.ann, bearer.ann": http.StatusBadRequest, "pubsubd.v1, bearer.": http.StatusBadRequest,
		} {
			c := k.Call()
			c.Send("GET /v1/ws?topic=a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
				"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: " + offer + "\r\n\r\n")
			answer, err := http.ReadResponse(c.Answers, nil)
			require.NoError(t, err)
			answer.Body.Close()
			require.Equal(t, want, answer.StatusCode, offer)
			require.NotContains(t, answer.Header.Get("Sec-WebSocket-Protocol"), "bearer")
			require.NoError(t, c.Conn.Close())
		}
		for token, code := range map[string]wire.Code{"ann": "", "bad": wire.CodeUnauthorized, "": wire.CodeUnauthorized} {
			conn, err := net.Dial("tcp", k.OpenPort())
			require.NoError(t, err)
			c := &lanetest.RawTCP{TB: t, Conn: conn, Frames: wire.NewCBORDecoder(conn)}
			c.Send(wire.ConnectRequest{Topics: []wire.Start{{Topic: "a"}}, Auth: optional(token)})
			got, err := c.Frames.Next()
			require.NoError(t, err)
			if code == "" {
				require.NotNil(t, got.Hello)
				require.Positive(t, got.Hello.ExpiresMS)
			} else {
				require.Equal(t, code, got.End.Code)
			}
			conn.Close()
		}
	})
}

// A refusal for want of credentials names the scheme, on the lane as in net/http.
func TestARefusalNamesTheScheme(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, lanetest.Settings{Authority: newNames(t)}, nil)
		c := k.CallOnLane()
		for _, request := range []string{"GET /v1/poll?topic=a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /v1/topics/a HTTP/1.1\r\nHost: h\r\n\r\n"} {
			c.Send(request)
			answer, err := http.ReadResponse(c.Answers, nil)
			require.NoError(t, err)
			var p wire.Problem
			require.NoError(t, json.NewDecoder(answer.Body).Decode(&p))
			answer.Body.Close()
			require.Equal(t, http.StatusUnauthorized, answer.StatusCode)
			require.Equal(t, `Bearer realm="pubsubd"`, answer.Header.Get("WWW-Authenticate"))
		}
	})
}

// A token expires while the answer is open: every transport says so, and the session stays.
func TestAnAnswerEndsWithItsToken(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, lanetest.Settings{Authority: newNames(t), Session: lanetest.LongStay()}, nil)
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			for tick := time.NewTicker(10 * time.Millisecond); ; {
				select {
				case now := <-tick.C:
					k.Parts.Sessions.Sweep(now)
				case <-stop:
					tick.Stop()
					return
				}
			}
		}()
		const soon = "Authorization: Bearer ann/300"
		id := k.Open(`{"topics":["a"]}`, soon).Session
		other := k.Open(`{"topics":["a"]}`, soon).Session
		s := k.DialSocket("/v1/ws?topic=a&token=ann/300")
		require.Positive(t, s.Hello().ExpiresMS)
		poll := make(chan string)
		go func() {
			_, text := k.Get("GET", "/v1/sessions/"+id+"/poll?ack=0", "")
			poll <- text
		}()
		_, stream := k.Get("GET", "/v1/sessions/"+other+"/poll?ack=0&mode=stream", "")
		require.Contains(t, stream, `{"end":{"title":"Unauthorized","status":401,"code":"token_expired"`)
		require.Contains(t, <-poll, `"code":"token_expired"`)
		_, err := s.Next()
		require.ErrorIs(t, err, problem.New(wire.CodeTokenExpired, "", ""))
		k.WantProblem(wire.CodeTokenExpired, "GET", "/v1/sessions/"+id+"/poll?ack=0", "")

		status, text := k.Get("PATCH", "/v1/sessions/"+id, "{}", lanetest.JSONType, asAnn)
		require.Equal(t, http.StatusOK, status, text)
		require.Contains(t, text, `"expires_ms":3`)
		k.Get("POST", "/v1/topics/a/messages", "1", lanetest.JSONType, asAnn)
		_, text = k.Get("GET", "/v1/sessions/"+id+"/poll?ack=0", "")
		require.Contains(t, text, `"data":1`)
	})
}
