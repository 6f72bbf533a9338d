package httpapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An issuer makes tokens, good ones and bad ones.
type issuer struct {
	*testing.T
	key, other *ecdsa.PrivateKey
	public     []byte // of key, in PEM
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{T: t}
	for _, to := range []**ecdsa.PrivateKey{&i.key, &i.other} {
		var err error
		*to, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
	}
	der, err := x509.MarshalPKIXPublicKey(&i.key.PublicKey)
	require.NoError(t, err)
	i.public = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	return i
}

// authority returns an authority that trusts the issuer's key and nothing else.
func (i *issuer) authority() *auth.Authority {
	path := filepath.Join(i.TempDir(), "key.pem")
	require.NoError(i, os.WriteFile(path, i.public, 0o600))
	a, err := auth.New(auth.Config{
		Keys: []string{path}, Issuer: "us", Audience: "pubsubd", TokenMaxAge: time.Hour,
		Revocations: filepath.Join(i.TempDir(), "revoked"),
	}, metrics.New("test"), zap.NewNop())
	require.NoError(i, err)
	i.Cleanup(a.Close)
	require.NoError(i, a.Revocations().Add("", "stolen", time.Now()))
	require.NoError(i, a.Revocations().Add("mallory", "", time.Now())) // with tokens of now, not of later
	return a
}

type claims map[string]any

// of returns the claims of a token of ann for everything, with changes.
func (i *issuer) of(changes claims) claims {
	now := time.Now().Unix()
	c := claims{
		"iss": "us", "aud": "pubsubd", "sub": "ann", "iat": now, "exp": now + 600,
		"pubsub": []any{map[string]any{"topics": []string{"a", "b", "c"}, "allow": auth.AllRights()}},
	}
	maps.Copy(c, changes)
	return c
}

func (i *issuer) sign(algorithm jose.SignatureAlgorithm, key any, c claims) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil)
	require.NoError(i, err)
	payload, err := json.Marshal(c)
	require.NoError(i, err)
	signed, err := signer.Sign(payload)
	require.NoError(i, err)
	token, err := signed.CompactSerialize()
	require.NoError(i, err)
	return token
}

func (i *issuer) good(c claims) string { return i.sign(jose.ES256, i.key, i.of(c)) }

// unsigned returns a token with the algorithm none.
func (i *issuer) unsigned() string {
	payload, err := json.Marshal(i.of(nil))
	require.NoError(i, err)
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString(payload) + "."
}

// attempts are the credentials that must not get through, and why.
func (i *issuer) attempts(otherRight auth.Right) map[string]attempt {
	now := time.Now().Unix()
	some := func(right auth.Right, topic string) claims {
		return claims{"pubsub": []any{map[string]any{"topics": []string{topic}, "allow": []auth.Right{right}}}}
	}
	good := i.good(nil)
	return map[string]attempt{
		"no token":             {"", wire.CodeUnauthorized, withoutCredentials},
		"malformed":            {good[:len(good)/2], wire.CodeUnauthorized, invalid},
		"signature cut":        {good[:len(good)-4], wire.CodeUnauthorized, invalid},
		"wrong key":            {i.sign(jose.ES256, i.other, i.of(nil)), wire.CodeUnauthorized, invalid},
		"algorithm none":       {i.unsigned(), wire.CodeUnauthorized, invalid},
		"HMAC with public key": {i.sign(jose.HS256, i.public, i.of(nil)), wire.CodeUnauthorized, invalid},
		"expired":              {i.good(claims{"iat": now - 60, "exp": now - 1}), wire.CodeTokenExpired, invalid},
		"not yet valid":        {i.good(claims{"nbf": now + 300}), wire.CodeUnauthorized, invalid},
		"issued in the future": {i.good(claims{"iat": now + 300}), wire.CodeUnauthorized, invalid},
		"without expiry":       {i.good(claims{"exp": nil}), wire.CodeUnauthorized, invalid},
		"wrong issuer":         {i.good(claims{"iss": "them"}), wire.CodeUnauthorized, invalid},
		"wrong audience":       {i.good(claims{"aud": []string{"else"}}), wire.CodeUnauthorized, invalid},
		"revoked":              {i.good(claims{"jti": "stolen"}), wire.CodeUnauthorized, invalid},
		"revoked subject":      {i.good(claims{"sub": "mallory", "iat": now - 60}), wire.CodeUnauthorized, invalid},
		"other topic":          {i.good(claims{"pubsub": []any{map[string]any{"topics": []string{"z.>"}, "allow": auth.AllRights()}}}), wire.CodeForbidden, withoutRight},
		"other right":          {i.good(some(otherRight, "a")), wire.CodeForbidden, withoutRight},
		"no rights":            {i.good(claims{"pubsub": nil}), wire.CodeForbidden, withoutRight},
		"of another principal": {i.good(claims{"sub": "bob"}), wire.CodeForbidden, ofAnother},
	}
}

// An attempt is a token that must not get through, the code of its refusal, and its kind.
type attempt struct {
	token string
	code  wire.Code
	kind  kindOfAttempt
}

type kindOfAttempt int

const (
	withoutCredentials kindOfAttempt = iota
	invalid                          // refused wherever credentials are read
	withoutRight                     // of the session's principal
	ofAnother                        // with every right
)

// A guard is what protects a route.
type guard int

const (
	byRight     guard = iota // a right on a topic
	byTicket                 // the session's id, unless credentials are of another principal
	byPrincipal              // the session's principal
	byOwner                  // the session's principal, and a right on a topic
	byIdentity               // any principal; without credentials, a right on a topic
	byNobody                 // only invalid credentials are refused
)

// gets reports whether an attempt gets through a guard on purpose.
func (g guard) gets(kind kindOfAttempt) bool {
	switch g {
	case byRight:
		return kind == ofAnother // who may do everything here
	case byTicket:
		return kind == withoutCredentials || kind == withoutRight
	case byPrincipal:
		return kind == withoutRight
	case byIdentity:
		return kind != invalid && kind != withoutCredentials
	case byNobody:
		return kind != invalid
	}
	return false
}

func guardOf(at string) guard {
	at = asGet(at)
	_, path, _ := strings.Cut(at, " ")
	switch ask := asks[at]; {
	case strings.Contains(path, "{id}") && len(ask.want) > 0:
		return byOwner
	case at == "GET /v1/sessions/{id}":
		return byPrincipal
	case strings.Contains(path, "{id}"):
		return byTicket
	case path == "/v1/topics": // a list without topics is an answer
		return byIdentity
	case ask.right != "":
		return byRight
	}
	return byNobody
}

// Nothing gets through any route with any wrong credentials, whichever way they are carried.
// The test makes its table from the list of routes: a new one needs an entry in asks.
func TestNothingGetsThroughARoute(t *testing.T) {
	i := newIssuer(t)
	refused := map[string]int{}
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		tried := 0
		if way == lane.Channel {
			tried = 1 // a sample has each attempt on one of the ways
		}
		rules := []broker.Rule{{Name: "watched", Pattern: "a", Presence: true}}
		a := i.authority()
		k := serveLane(t, way, lanetest.Settings{Authority: a, Revoked: a.Revocations(), Session: lanetest.LongStay(), Broker: broker.Config{Rules: rules}}, nil)
		for _, at := range routes(t, k.api.router) {
			ask, ok := asks[asGet(at)]
			require.True(t, ok, "a new route: say in asks what the app asks for it")
			if ask.public {
				continue
			}
			attempts := i.attempts(otherRight(ask.right))
			for _, name := range slices.Sorted(maps.Keys(attempts)) {
				for _, carrier := range carriersOf(at, attempts[name]) {
					if tried++; tried%exhaustive.Step(2) == 0 {
						refused[name] += i.try(k, at, name, carrier, attempts[name])
					}
				}
			}
		}
	})
	for name, n := range refused {
		require.Positive(t, n, name)
	}
	t.Log("refused: ", refused)
}

// otherRight returns a right that a route does not ask for.
func otherRight(asked auth.Right) auth.Right {
	if asked == auth.Presence {
		return auth.Delete
	}
	return auth.Presence
}

// carriersOf returns the ways to carry a token to a route.
func carriersOf(at string, attempt attempt) []string {
	method, path, _ := strings.Cut(strings.Replace(at, "/v1", "", 1), " ")
	if attempt.token != "" && method == http.MethodGet && slices.Contains(waitingPaths, path) {
		return []string{"header", "query"}
	}
	return []string{"header"}
}

// try makes one attempt on a route. It returns 1 if the attempt was refused, and 0 if it gets
// through on purpose.
func (i *issuer) try(k *kit, at, name, carrier string, attempt attempt) int {
	t := k.TB
	asOwner := "Authorization: Bearer " + i.good(nil)
	k.Get("POST", "/v1/topics/a/messages", `"the secret"`, lanetest.JSONType, asOwner)
	id := k.Open(`{"topics":["a@oldest"]}`, asOwner).Session
	method, path, _ := strings.Cut(at, " ")
	path = strings.NewReplacer("{topic}", "a", "{id}", id).Replace(path) + asks[asGet(at)].query
	headers := []string{lanetest.JSONType}
	switch {
	case attempt.token == "":
	case carrier == "header":
		headers = append(headers, "Authorization: Bearer "+attempt.token)
	default:
		path += map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "token=" + attempt.token
	}
	before := k.state(id, asOwner)
	status, text := k.request(method, path, asks[asGet(at)].body, headers)
	if guardOf(at).gets(attempt.kind) {
		require.Less(t, status, 400, "%s, %s, %s: %s", at, name, carrier, text)
		return 0
	}
	if at != "POST /v1/messages" || attempt.kind == invalid { // it has a status for each message
		require.Equal(t, problem.Codes()[attempt.code], status, "%s, %s, %s: %s", at, name, carrier, text)
	}
	if method == http.MethodHead {
		require.Empty(t, text)
	} else {
		require.Contains(t, text, `"code":"`+string(attempt.code)+`"`, "%s, %s, %s", at, name, carrier)
	}
	require.NotContains(t, text, "the secret")
	if attempt.token != "" {
		require.NotContains(t, text, attempt.token[len(attempt.token)/2:], "an error repeats no secret")
	}
	require.Equal(t, before, k.state(id, asOwner), "%s, %s, %s changed something", at, name, carrier)
	return 1
}

// request makes a request, also for a WebSocket, and returns the status and the body. Of an
// answer that goes on, the body is empty.
func (k *kit) request(method, path, body string, headers []string) (int, string) {
	k.Helper()
	if strings.HasPrefix(path, "/v1/ws") {
		headers = append(headers, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
	}
	resp := k.Do(method, path, body, headers...)
	defer resp.Body.Close()
	if resp.ContentLength < 0 || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, ""
	}
	text, err := io.ReadAll(resp.Body)
	require.NoError(k, err)
	return resp.StatusCode, string(text)
}

var subscriptions = regexp.MustCompile(`"subscriptions":[0-9]+,`)

// state is what an attempt may not change.
func (k *kit) state(id, asOwner string) string {
	k.Helper()
	_, topics := k.Get("GET", "/v1/topics", "", asOwner)
	_, session := k.Get("GET", "/v1/sessions/"+id, "", asOwner)
	var s wire.SessionState
	require.NoError(k, json.Unmarshal([]byte(session), &s))
	topics = subscriptions.ReplaceAllString(topics, "") // answers that got through end a moment later
	return fmt.Sprint(topics, s.Session, s.Subscriptions, s.Patterns)
}

// Nothing gets through a two-way connection: not its opening, and no command on one that came
// with the session's id.
func TestNothingGetsThroughATwoWayConnection(t *testing.T) {
	i := newIssuer(t)
	refused := 0
	for _, by := range []string{"WebSocket", "WebSocket in CBOR", "TCP"} {
		lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
			k := serveLane(t, way, lanetest.Settings{Authority: i.authority()}, nil)
			for name, attempt := range i.attempts(auth.Presence) {
				refused += i.tryTwoWay(k, by, name, attempt)
				if by == "TCP" && attempt.kind != ofAnother {
					refused += i.tryFirstItem(k, name, attempt)
				}
			}
		})
	}
	t.Logf("refused: %d", refused)
}

// tryTwoWay makes one attempt on a connection that came with the session's id: it sends the
// token, and then every command that the id does not permit.
func (i *issuer) tryTwoWay(k *kit, by, name string, attempt attempt) (refused int) {
	t := k.TB
	c := k.Commander(by, k.Open(`{"topics":["a"]}`, "Authorization: Bearer "+i.good(nil)).Session)
	if attempt.token != "" {
		c.Send(wire.Command{Auth: attempt.token, Ref: new(uint64)})
		reply := c.WantReply(0)
		if attempt.kind == withoutRight {
			require.Nil(t, reply.Problem, "it is a token of the principal")
		} else {
			refused++
			require.NotNil(t, reply.Problem, "%s by %s", name, by)
			require.Equal(t, attempt.code, reply.Problem.Code, "%s by %s", name, by)
		}
	}
	permitted := map[string]bool{"ref": true, "auth": true, "ack": true, "ping": true, "unsubscribe": attempt.kind == withoutRight}
	commands := reflect.TypeFor[wire.Command]()
	for n := range commands.NumField() {
		command, _, _ := strings.Cut(commands.Field(n).Tag.Get("json"), ",")
		if permitted[command] {
			continue
		}
		c.Send(map[string]any{command: commandAsks[command].value, "ref": n})
		reply := c.WantReply(uint64(n))
		require.NotNil(t, reply.Problem, "%s by %s: %s", name, by, command)
		require.Contains(t, []wire.Code{wire.CodeUnauthorized, wire.CodeForbidden}, reply.Problem.Code)
		refused++
	}
	return refused
}

// tryFirstItem attempts to open a TCP connection, with a topic and without. Without one, a
// token of a principal is enough.
func (i *issuer) tryFirstItem(k *kit, name string, attempt attempt) (refused int) {
	for _, topics := range [][]wire.Start{{{Topic: "a"}}, nil} {
		if topics == nil && attempt.kind == withoutRight {
			continue
		}
		conn, err := net.Dial("tcp", k.OpenPort())
		require.NoError(k, err)
		defer conn.Close()
		c := &lanetest.RawTCP{TB: k.TB, Conn: conn, Frames: wire.NewCBORDecoder(conn)}
		c.Send(wire.ConnectRequest{Topics: topics, Auth: optional(attempt.token)})
		got, err := c.Frames.Next()
		require.NoError(k, err)
		require.NotNil(k, got.End, name)
		require.Equal(k, attempt.code, got.End.Code, name)
		refused++
	}
	return refused
}
