package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A decoder is decoded when the test lets it.
type decoder struct{ began, end chan struct{} }

func (d *decoder) UnmarshalJSON([]byte) error {
	d.began <- struct{}{}
	<-d.end
	return nil
}

// turns is how many turns there are.
func turns() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// takeTurns takes n turns, for calls of others, and returns how to end them.
func (a *App) takeTurns(t *testing.T, n int) (leave func()) {
	t.Helper()
	turns := a.cfg.Limiter.Turns()
	for range n {
		require.NoError(t, turns.Enter(t.Context(), nil))
	}
	return func() {
		for range n {
			turns.Leave()
		}
	}
}

func TestOneLargeBodyIsDecodedAtATime(t *testing.T) {
	a := newApp(t)
	for name, row := range map[string]struct{ bytes, atOnce int }{
		"large": {largeBody + 1, 1},
		"small": {largeBody, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leave := a.takeTurns(t, turns()-1)
				defer leave()
				text := []byte(`"` + strings.Repeat("x", row.bytes-2) + `"`)
				d := &decoder{began: make(chan struct{}, 3), end: make(chan struct{})}
				for range 3 {
					go func() { _ = a.readJSON(t.Context(), &Caller{}, bodyOf(string(text)), d) }()
				}
				for left := 3; left > 0; left-- {
					synctest.Wait()
					require.Len(t, d.began, min(row.atOnce, left))
					<-d.began
					d.end <- struct{}{}
				}
			})
		})
	}
}

// A client that leaves while its large body waits for its turn gives the turn up. A body that
// has not arrived has no turn.
func TestOnlyABodyThatIsThereHasATurn(t *testing.T) {
	a := newApp(t)
	synctest.Test(t, func(t *testing.T) {
		large := `{"topics":["a"` + strings.Repeat(" ", largeBody) + `]}`
		arrives := make(chan string)
		open := func(ctx context.Context, body Body) chan error {
			over := make(chan error, 1)
			go func() {
				var r wire.OpenRequest
				over <- a.readJSON(ctx, &Caller{}, body, &r)
			}()
			synctest.Wait()
			return over
		}
		slow := open(t.Context(), func(int) ([]byte, error) { return []byte(<-arrives), nil })
		require.NoError(t, <-open(t.Context(), bodyOf(large)))

		others := a.takeTurns(t, turns())
		ctx, leave := context.WithCancel(t.Context())
		left, stayed := open(ctx, bodyOf(large)), open(t.Context(), bodyOf(large))
		require.NoError(t, <-open(ctx, bodyOf(`{"topics":["a"]}`)), "a small body needs no turn")
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		require.Empty(t, stayed)
		others()
		require.NoError(t, <-stayed)
		arrives <- large
		require.NoError(t, <-slow)
	})
}

// A caller without the right that a request needs is refused before its body arrives.
func TestABodyIsReadOnlyForACallerWithRights(t *testing.T) {
	for _, row := range []struct {
		subject, allow    string
		subscribe, manage wire.Code
	}{
		{"", "", wire.CodeUnauthorized, wire.CodeUnauthorized},
		{"", "history", wire.CodeUnauthorized, wire.CodeUnauthorized},
		{"ann", "", wire.CodeForbidden, wire.CodeForbidden},
		{"ann", "history", wire.CodeForbidden, wire.CodeForbidden},
		{"ann", "publish", wire.CodeForbidden, ""},
		{"ann", "subscribe", "", wire.CodeForbidden},
		{"ann", "presence", "", wire.CodeForbidden}, // subscribes to presence topics
	} {
		rights := "[]"
		if row.allow != "" {
			rights = `[{"topics":["chat.>"],"allow":["` + row.allow + `"]}]`
		}
		a := newApp(t, func(c *Config) { c.Authority = permit(t, row.subject, rights) })
		for name, call := range map[string]struct {
			refused wire.Code
			make    func(Body) error
		}{
			"session": {row.subscribe, func(b Body) error { _, err := a.OpenSession(t.Context(), Caller{}, b); return err }},
			"poll":    {row.subscribe, func(b Body) error { _, _, err := a.PollTopics(t.Context(), Caller{}, TopicPoll{Body: b}); return err }},
			"many": {row.manage, func(b Body) error {
				return a.PublishMany(t.Context(), Caller{}, Head{ContentType: Header{"application/json", 1}}, b, nil)
			}},
		} {
			read := false
			err := call.make(func(int) ([]byte, error) { read = true; return nil, ErrClientGone })
			if call.refused == "" {
				require.ErrorIs(t, err, ErrClientGone, "%s with %s", name, row.allow)
				continue
			}
			require.ErrorIs(t, err, &wire.Problem{Code: call.refused}, "%s with %s", name, row.allow)
			require.False(t, read, "%s with %s", name, row.allow)
		}
	}
}

// The members and topics in a body, a first item and a command are counted before they are
// decoded.
func TestABodyWithTooManyTopicsIsNotDecoded(t *testing.T) {
	for text, commas := range map[string]struct{ members, topics int }{
		`{}`: {0, 0},
		`{"topics":["a"],"client":"x","ack":true}`:                       {2, 0},
		`{"topics":["a","b","c"],"client":"x","ack":true}`:               {2, 2},
		`{"add":["a","b"],"remove":["c","d"]}`:                           {1, 2},
		`{"topics":["a,[\"{,","b\\"],"client":"a,b"}`:                    {1, 1},
		` { "topics" : [ {"topic":"a","max_rate":"1/s"} , "b", "c" ] } `: {0, 2},
		`{"topics":["a"` + strings.Repeat(`,"a"`, 9) + `]}`:              {0, 9},
		`{"add":["a"]` + strings.Repeat(`,"add":["a"]`, 9) + `}`:         {9, 0},
	} {
		const never = 100
		for n := 1; n < 12; n++ {
			require.Equal(t, commas.members >= n, depthOfCommas([]byte(text), n, never) == 1, "%s, %d", text, n)
			require.Equal(t, commas.topics >= n, depthOfCommas([]byte(text), never, n) == 2, "%s, %d", text, n)
		}
	}
	a := newApp(t)
	d := &decoder{} // blocks for ever
	many := `{"topics":["a"` + strings.Repeat(`,"a"`, a.cfg.Sessions.Config().MostNamed()) + `]}`
	require.ErrorIs(t, a.readJSON(t.Context(), &Caller{}, bodyOf(many), d), &wire.Problem{Code: wire.CodeTooManySubscriptions})
	_, err := a.ConnectByItem(t.Context(), Caller{}, cbor.AppendFromJSON(nil, []byte(many)))
	require.ErrorContains(t, err, "must name at most", "the first item of a TCP connection")

	command, err := a.readCommand([]byte(`{"ref":7,"subscribe"`+strings.TrimPrefix(many, `{"topics"`)), allNames)
	require.ErrorContains(t, err, "must name at most", "a command")
	require.Equal(t, &wire.Command{Ref: new(uint64(7))}, command)

	repeated := `{"ref":7` + strings.Repeat(`,"subscribe":["x"]`, cbor.MaxMembers) + `}`
	require.ErrorIs(t, a.readJSON(t.Context(), &Caller{}, bodyOf(repeated), d), errMembers)
	for name, read := range map[string]func() (*wire.Command, error){
		"JSON": func() (*wire.Command, error) { return a.readCommand([]byte(repeated), allNames) },
		"CBOR": func() (*wire.Command, error) {
			member := cbor.AppendText(cbor.AppendText(nil, "auth"), "t")
			return a.readCBORCommand(append(cbor.AppendHead(nil, cbor.Map, cbor.MaxMembers+1), bytes.Repeat(member, cbor.MaxMembers+1)...), allNames)
		},
	} {
		command, err := read()
		require.ErrorContains(t, err, "at most 32", name)
		require.Nil(t, command, "%s: it ends the connection", name)
	}
}

// Strangers cannot make the daemon decode the large first item of a TCP connection. Of a
// principal, it decodes one large item at a time.
func TestALargeFirstItemIsDecodedAfterAuthentication(t *testing.T) {
	large := func(members string) []byte {
		return cbor.AppendFromJSON(nil, []byte(`{`+members+`"topics":["`+strings.Repeat("a", largeBody)+`"]}`))
	}
	guard(t, func(g *guarded) {
		id := g.open(g.token("t", time.Hour, "a", auth.Subscribe), "a")
		connect := func(members string) chan error {
			over := make(chan error, 1)
			go func() {
				_, err := g.ConnectByItem(g.Context(), Caller{}, large(members))
				over <- err
			}()
			synctest.Wait()
			return over
		}
		others := g.takeTurns(t, turns())
		require.ErrorIs(t, <-connect(""), &wire.Problem{Code: wire.CodeUnauthorized})
		principal := connect(`"auth":"` + g.token("u", time.Hour, "a", auth.Subscribe).Token + `",`)
		require.Empty(t, principal)
		resumes := connect(`"ack":0,"session":"` + id + `",`)
		require.Empty(t, resumes)
		others()
		require.ErrorIs(t, <-principal, &wire.Problem{Code: wire.CodeInvalidTopic})
		require.ErrorIs(t, <-resumes, errSessionAlone)
	})
}

// A token and a session's id are found under their exact names only.
func TestTheFirstItemNamesItsTokenExactly(t *testing.T) {
	a := newApp(t)
	for item, want := range map[string]string{
		`{"Auth":"t"}`:    `unknown field "Auth"`,
		`{"Session":"s"}`: `unknown field "Session"`,
		`{"auth":1}`:      `"auth" cannot be of the type number`,
		`{"auth":"` + strings.Repeat("t", largeBody) + `"}`: "auth and session must have at most 65536 bytes",
	} {
		_, err := a.ConnectByItem(t.Context(), Caller{}, cbor.AppendFromJSON(nil, []byte(item)))
		require.ErrorContains(t, err, want)
	}
}

// Whatever reads a request refuses members in other cases, members that appear twice, and null.
func TestEveryRequestIsReadStrictly(t *testing.T) {
	a := newApp(t)
	inCBOR := func(text string) []byte { return cbor.AppendFromJSON(nil, []byte(text)) } // with a member twice, no map
	many := func(mediaType, body string) (err error) {
		var answer []byte
		err = a.PublishMany(t.Context(), Caller{}, Head{ContentType: Header{mediaType, 1}}, bodyOf(body), func(_ string, parts iter.Seq[[]byte]) error {
			for part := range parts {
				answer = append(answer, part...)
			}
			return nil
		})
		if err == nil && bytes.Contains(answer, []byte("problem")) {
			err = errors.New(string(answer))
		}
		return err
	}
	opened, err := a.OpenSession(t.Context(), Caller{}, bodyOf(`{}`))
	require.NoError(t, err)
	for name, request := range map[string]struct {
		member, value string
		read          func(text string) error
	}{
		"session": {"client", `"c"`, func(text string) error { _, err := a.OpenSession(t.Context(), Caller{}, bodyOf(text)); return err }},
		"start": {"topic", `"a"`, func(text string) error {
			_, err := a.OpenSession(t.Context(), Caller{}, bodyOf(`{"topics":[`+text+`]}`))
			return err
		}},
		"change": {"add", `["a"]`, func(text string) error {
			return a.ChangeSession(t.Context(), Caller{}, opened.Session, bodyOf(text), func(wire.SessionChanged) error { return nil })
		}},
		"poll": {"topics", `["a"]`, func(text string) error {
			_, _, err := a.PollTopics(t.Context(), Caller{}, TopicPoll{Body: bodyOf(text)})
			return err
		}},
		"many in an array": {"data", "1", func(text string) error { return many("application/json", `[{"topic":"a",`+text[1:]+"]") }},
		"many in lines":    {"data", "1", func(text string) error { return many("application/x-ndjson", `{"topic":"a",`+text[1:]) }},
		"many in CBOR": {"data", "1", func(text string) error {
			return many("application/cbor-seq", string(inCBOR(`{"topic":"a",`+text[1:])))
		}},
		"command": {"subscribe", `["a"]`, func(text string) error { _, err := a.readCommand([]byte(text), allNames); return err }},
		"command in CBOR": {"subscribe", `["a"]`, func(text string) error {
			_, err := a.readCBORCommand(inCBOR(text), allNames)
			return err
		}},
		"publish in CBOR": {"publish", `{"topic":"a","data":1}`, func(text string) error {
			_, err := a.readCBORCommand(inCBOR(text), allNames)
			return err
		}},
		"first item": {"topics", `["a"]`, func(text string) error {
			_, err := a.ConnectByItem(t.Context(), Caller{}, inCBOR(text))
			return err
		}},
		"revocation": {"session", "1000", func(text string) error { _, err := a.Revoke([]byte(text), time.Now()); return err }},
	} {
		t.Log(name)
		object := func(members ...string) string { return "{" + strings.Join(members, ",") + "}" }
		is := fmt.Sprintf("%q:%s", request.member, request.value)
		other := strings.Replace(is, request.member, strings.ToUpper(request.member), 1)
		if err := request.read(object(is)); name != "revocation" { // there is no such session
			require.NoError(t, err)
		} else {
			require.NotErrorIs(t, err, &wire.Problem{Code: wire.CodeInvalidRequest})
		}
		require.ErrorContains(t, request.read(object(other)), "unknown field")
		require.ErrorContains(t, request.read(object(is, other)), "unknown field")
		require.Error(t, request.read(object(is, is)))
		if request.member != "data" { // null is a payload
			require.Error(t, request.read(object(fmt.Sprintf("%q:null", request.member))))
		}
	}
	require.ErrorContains(t, many("application/json", `[{"topic":"a","type":"a/b","base64":"aG\nk="}]`), "illegal character")
	require.ErrorContains(t, many("application/json", `[{"topic":"a","data":{"a":1,"a":2}}]`), string(wire.CodeInvalidBody))
	require.ErrorContains(t, many("application/json", `[{"topic":"a","type":"json","text":"1"}]`), string(wire.CodeUnsupportedType))

	command, err := a.readCommand([]byte(`{"ref":7,"REF":8,"ping":true}`), allNames)
	require.ErrorContains(t, err, "unknown field")
	require.EqualValues(t, 7, *command.Ref, "the reply has the ref of that name")
}

func TestAProblemShowsCharactersAndNotBytes(t *testing.T) {
	for body, want := range map[string]string{
		`{"topics":[é]}`:        "invalid character 'é' at start of value",
		`{"topics":[x]}`:        "invalid character 'x' at start of value",
		"{\"client\":\"\x01\"}": `invalid character '\x01' in string`,
		`{"topics":`:            "unexpected EOF",
		`{"topïcs":[]}`:         `unknown field "topïcs"`,
	} {
		require.ErrorContains(t, decode([]byte(body), new(wire.OpenRequest)), want)
	}
}

func TestAValueOfTheWrongTypeIsQuoted(t *testing.T) {
	for value, detail := range map[string]string{
		"0.5":                          `"ttl" cannot be 0.5`,
		"-1":                           `"ttl" cannot be -1`,
		"1" + strings.Repeat("9", 400): `"ttl" cannot be 1` + strings.Repeat("9", 63) + "…",
		`"x"`:                          `"ttl" cannot be of the type string`,
	} {
		var into struct {
			TTL *uint64 `json:"ttl"`
		}
		require.ErrorContains(t, decode([]byte(`{"ttl":`+value+`}`), &into), "the body cannot be read: "+detail)
	}
	require.Equal(t, `ttl must be 1 to 9; got "0.5"`, outside("ttl", "0.5", 1, 9).Detail)
}
