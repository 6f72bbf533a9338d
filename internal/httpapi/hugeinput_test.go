package httpapi

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// maxProblem is the maximum size of any problem, in bytes.
const maxProblem = 1 << 10

// hugeInputs are invalid almost everywhere. All but the third repeat an "x".
var hugeInputs = []string{
	huge("x"), huge("x."), huge("é\x00\""), huge("x@"), huge("a@k3:9x"), huge("*x"), "a." + huge("x") + "@oldest", huge("~x:"), huge("%x,"),
	"a/b; " + huge("x"), `"` + huge("x") + `"`,
}

func huge(s string) string { return strings.Repeat(s, 4_000/len(s)) }

// wantShort requires that a problem repeats little of its request.
func wantShort(t *testing.T, status int, answer, what string) {
	t.Helper()
	if status < 300 {
		return
	}
	require.LessOrEqual(t, len(answer), maxProblem, what)
	var p wire.Problem
	require.NoError(t, json.Unmarshal([]byte(answer), &p), "%s: %s", what, answer)
	require.NotEqual(t, wire.CodeInternal, p.Code)
	require.NotContains(t, p.Detail, strings.Repeat("x", 64+1), what)
}

// A problem quotes only a few bytes of a huge input, wherever the request contains it.
func TestNoProblemRepeatsAHugeRequest(t *testing.T) {
	parameters := []string{
		"topic", "ack", "mode", "format", "hello", "client", "echo", "max_rate", "last_event_id", "lastEventId", "session", "limit", "after", "ttl", "key",
	}
	tried := map[string]bool{}
	step := exhaustive.Step(19)
	for r, at := range routes(t, newAPI(lanetest.NewParts(lanetest.Settings{})).router) {
		if strings.HasPrefix(at, "HEAD ") {
			continue // as GET, but its answer has no body
		}
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{})
			id := k.Open(`{"topics":["a"]}`).Session
			method, template, _ := strings.Cut(at, " ")
			path := strings.NewReplacer("{topic}", "a", "{id}", id).Replace(template)
			ask := func(path, body string, headers ...string) {
				t.Helper()
				if len(headers) == 0 {
					headers = []string{lanetest.JSONType}
				}
				resp := k.Do(method, path, body, headers...)
				defer resp.Body.Close()
				answer := make([]byte, 2*maxProblem) // some answers do not end
				n, _ := resp.Body.Read(answer)
				wantShort(t, resp.StatusCode, string(answer[:n]), at)
			}
			for i, in := range hugeInputs {
				if (r+i)%exhaustive.Step(4) != 0 { // each on some routes
					continue
				}
				escaped := url.QueryEscape(in)
				for n, name := range parameters {
					if (r+i+n)%step == 0 {
						tried[name] = true
						ask(path+"?topic=a&mode=batch&echo=false&"+name+"="+escaped, "")
					}
				}
				ask(path+"?topic="+escaped, "")
				ask(path+"?"+escaped+"=1", "")
				ask(path+"?%"+strings.ReplaceAll(escaped, "%", ""), "")
				ask(strings.NewReplacer("{topic}", url.PathEscape(in), "{id}", url.PathEscape(in)).Replace(template), "")
				for _, name := range []string{"Content-Type", "Idempotency-Key", "Last-Event-ID", "Accept", "Authorization"} {
					if value := strings.NewReplacer("\x00", "").Replace(in); method == "POST" || name != "Content-Type" {
						ask(path, "", name+": "+value)
					}
				}
				if method != "GET" && i < 4 {
					for b, body := range hugeBodies(t, in) {
						for form, ask := range []func(){
							func() { ask(path, body) },
							func() { ask(path, "["+body+"]") },
							func() { ask(path, body, "Content-Type: application/x-ndjson") },
							func() {
								ask(path, string(cbor.AppendFromJSON(nil, []byte(body))), "Content-Type: application/cbor-seq")
							},
						} {
							if (r+i+b+form)%step == 0 {
								ask()
							}
						}
					}
				}
			}
		})
	}
	if exhaustive.On() {
		require.Len(t, tried, len(parameters), "every few cases have each parameter")
	}
}

// hugeBodies returns requests, messages and commands with one huge member.
func hugeBodies(t *testing.T, in string) (bodies []string) {
	t.Helper()
	text, err := json.Marshal(in)
	require.NoError(t, err)
	for _, form := range []string{
		`{"topics":[IN]}`, `{"topics":IN}`, `{IN:1}`, `{"client":IN}`, `{"client":IN,"echo":false}`, `{"add":[IN]}`, `{"remove":[IN]}`,
		`{"topics":[{"topic":IN}]}`, `{"topics":[{"topic":"a","from":IN}]}`, `{"topics":[{"topic":"a","max_rate":IN}]}`, `{"topics":[{IN:1}]}`,
		`{"topics":["a","a"],IN:1}`, `{"topics":[{"topic":"a","max_rate":1NINES}]}`, `{"ack":1NINES}`, `{"ack":IN}`, `[IN]`, `IN`,
		`{"topic":IN,"data":1}`, `{"topic":"a","type":IN,"text":"x"}`, `{"topic":"a","data":1,"key":IN}`, `{"topic":"a","data":1,"client":IN}`,
		`{"topic":"a","data":1,"id":IN}`, `{"topic":"a","data":1,"ttl":IN}`, `{"topic":"a","data":1,"ttl":1NINES}`, `{"topic":"a","data":{IN:1,IN:2}}`,
		`{"topic":"a","type":"a/b","base64":IN}`, `{"topic":"a","data":1,IN:1}`, `{"topic":IN}`,
		`{"subscribe":[IN]}`, `{"subscribe":IN}`, `{"unsubscribe":[IN]}`, `{"publish":{"topic":IN,"data":1}}`, `{"publish":{"topic":"a","type":IN,"text":"x"}}`,
		`{"publish":{"topic":"a","data":{IN:1,IN:2}}}`, `{"publish":IN}`, `{"publish":{IN:1}}`, `{"ping":IN}`, `{"session":IN}`, `{"ref":IN}`,
	} {
		bodies = append(bodies, strings.NewReplacer("IN", string(text), "NINES", strings.Repeat("9", 4_000)).Replace(form))
	}
	return bodies
}

// As above, with an invalid payload.
func TestNoProblemRepeatsAHugePayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for _, in := range hugeInputs {
			text, err := json.Marshal(in)
			require.NoError(t, err)
			for _, body := range []string{
				in, string(text) + string(text), "{" + string(text) + ":1," + string(text) + ":2}", "{" + string(text) + ":{" + string(text) + ":x}}",
				"{" + string(text) + `:[1,{"a":tru}]}`, strings.Repeat("9", 4_000) + "x",
			} {
				for _, kind := range []string{lanetest.JSONType, "Content-Type: application/cbor"} {
					status, answer := k.Get("POST", "/v1/topics/a/messages", body, kind)
					wantShort(t, status, answer, body[:20])
				}
			}
		}
	})
}

// As above, for replies to commands and for end frames.
func TestNoReplyRepeatsAHugeCommand(t *testing.T) {
	for f, format := range []string{"json", "cbor"} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{})
			for i, in := range hugeInputs {
				for b, body := range hugeBodies(t, in) {
					if (f+i+b)%exhaustive.Step(13) != 0 {
						continue
					}
					s := k.DialSocket("/v1/ws?format=" + format)
					s.Hello()
					s.Send(json.RawMessage(strings.Replace(body, "{", `{"ref":1,`, 1)))
					select {
					case reply := <-s.Replies:
						wantShortReply(t, reply.Problem, body)
					case c := <-s.Frames:
						require.NotNil(t, c.End, body[:20])
						wantShortReply(t, c.End, body)
					}
					s.Close()
				}
			}
		})
	}
}

func wantShortReply(t *testing.T, p *wire.Problem, what string) {
	t.Helper()
	if p != nil {
		wantShort(t, p.Status, string(request.InJSON(p)), what[:20])
	}
}

// As above, for the opening of a bare connection.
func TestNoEndRepeatsAHugeOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBareKit(t, lanetest.Settings{})
		for i, in := range hugeInputs {
			for b, body := range hugeBodies(t, in) {
				if (i+b)%exhaustive.Step(13) != 0 {
					continue
				}
				conn := k.dialBare()
				_, err := conn.Write(cbor.AppendFromJSON(nil, []byte(body)))
				require.NoError(t, err)
				c, err := wire.NewCBORDecoder(conn).Next()
				require.NoError(t, err)
				wantShortReply(t, c.End, body)
				conn.Close()
			}
		}
	})
}
