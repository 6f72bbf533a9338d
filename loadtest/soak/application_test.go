package soak

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// newOffice is an application, for a ledger with a topic that it is asked about.
func newOffice(t *testing.T) *application {
	names := make([]string, hookedFirst+1)
	for i := range names {
		names[i] = fmt.Sprint("t.", i)
	}
	a, err := newApplication(newLedger(names, newPayloads(1, 200), newFaults(), time.Now()))
	require.NoError(t, err)
	t.Cleanup(a.close)
	return a
}

// thought returns a message of which the application has the opinion at once.
func (a *application) thought(o opinion) identity {
	for id := newIdentity(hookedFirst, 0, 0); ; id++ {
		if is, thinks := a.ledger.payloads.opinionOf(id); is == o && (thinks == 0 || o == dawdles) {
			return id
		}
	}
}

// question is what a daemon asks about a message.
func (a *application) question(id identity) []byte {
	f := a.ledger.payloads.offered(id)
	m := &wire.Message{Type: f.mediaType, Data: a.ledger.payloads.body(id, f)}
	question := fmt.Appendf(nil, `{"type":"publish","topic":%q,"principal":"ann","message":{"client":"c"`, a.ledger.names[id.topic()])
	if f.ttl > 0 {
		question = fmt.Appendf(question, `,"ttl":%d`, int64(f.ttl/time.Second))
	}
	return append(m.AppendPayload(question), "}}\n"...)
}

// ask asks, signed with the secret.
func (a *application) ask(t *testing.T, secret string, body []byte) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/publish", bytes.NewReader(body))
	stamp := fmt.Sprint(time.Now().Unix())
	mac := hmac.New(sha256.New, webhook.KeyOf(secret))
	fmt.Fprintf(mac, "m.%s.%s", stamp, body)
	r.Header.Set("Webhook-Id", "m")
	r.Header.Set("Webhook-Timestamp", stamp)
	r.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Result().Body)
	require.NoError(t, err)
	return w.Code, string(text)
}

// wantFaults requires what the application found, in all.
func (a *application) wantFaults(t *testing.T, n int, with string) {
	t.Helper()
	require.Equal(t, n, a.ledger.faults.count[Hook], a.ledger.faults.kept)
	if n > 0 {
		require.Contains(t, a.ledger.faults.kept[n-1].Detail, with)
	}
}

func (a *application) take(id identity) {
	a.ledger.accepted(id, wire.Published{Position: wire.Position{Topic: a.ledger.names[id.topic()], Epoch: "e1", Offset: id.sequence() + 1}})
}

// Whom the application consents to, is published; as it says.
func TestTheApplicationSaysWhatItThinks(t *testing.T) {
	a := newOffice(t)
	for o, want := range map[opinion]func(*wire.HookAnswer, identity){
		lets: func(said *wire.HookAnswer, _ identity) { require.Equal(t, &wire.HookAnswer{}, said) },
		changes: func(said *wire.HookAnswer, id identity) {
			_, err := parseIdentity(payloadOf(said.Message))
			require.NoError(t, err)
			require.Equal(t, encoded(a.itemOf(id, a.ledger.payloads.formOf(id))), encoded(said.Message))
		},
		refuses: func(said *wire.HookAnswer, id identity) { require.Equal(t, refusal(id), said.Refuse.Detail) },
	} {
		id := a.thought(o)
		status, text := a.ask(t, a.secret, a.question(id))
		require.Equal(t, http.StatusOK, status, text)
		var said wire.HookAnswer
		require.NoError(t, json.Unmarshal([]byte(cmp.Or(text, "{}")), &said))
		want(&said, id)
		if o.consents() {
			a.take(id)
		}
	}
	id := a.thought(fails)
	for _, want := range []int{http.StatusInternalServerError, http.StatusOK} {
		status, _ := a.ask(t, a.secret, a.question(id))
		require.Equal(t, want, status)
	}
	a.take(id)
	a.judge()
	a.wantFaults(t, 0, "")
}

func TestWhatIsPublishedWithoutConsentIsAFault(t *testing.T) {
	for o, what := range map[opinion]string{lets: "not asked", refuses: "did not allow it", fails: "did not allow it"} {
		a := newOffice(t)
		id := a.thought(o)
		if o != lets {
			a.ask(t, a.secret, a.question(id))
		}
		a.take(id)
		a.judge()
		a.wantFaults(t, 1, what)
	}
}

// What is asked is to be signed, whole, and asked once.
func TestWrongQuestionsAreFaults(t *testing.T) {
	a := newOffice(t)
	id := a.thought(lets)
	right := a.question(id)
	other := a.question(newIdentity(hookedFirst-1, 0, 0))
	for n, wrong := range []struct {
		secret string
		body   []byte
		what   string
	}{
		{webhook.NewSecret(), right, "no valid signature"},
		{a.secret, bytes.Replace(right, []byte(`"publish"`), []byte(`"connect"`), 1), "not a request of the hook"},
		{a.secret, bytes.Replace(right, []byte("t.4"), []byte("t.3"), 1), "not of the topic"},
		{a.secret, other, "not for"},
		{a.secret, bytes.Replace(right, []byte(`"message":{`), []byte(`"message":{"key":"k",`), 1), "was asked about"},
		{a.secret, []byte(`{"type":"publish","topic":"t.4","message":{"data":7}}`), "name"},
	} {
		status, _ := a.ask(t, wrong.secret, wrong.body)
		require.Equal(t, http.StatusBadRequest, status)
		a.wantFaults(t, n+1, wrong.what)
	}
	for range 2 {
		status, _ := a.ask(t, a.secret, right)
		require.Equal(t, http.StatusOK, status)
	}
	a.wantFaults(t, 7, "again")
}

func TestMoreQuestionsThanMayBeAtATimeAreAFault(t *testing.T) {
	a := newOffice(t)
	for n := range uint64(2 * hookCalls) {
		a.enter(newIdentity(hookedFirst, probePublisher, n), time.Now())
	}
	a.wantFaults(t, 0, "")
	a.enter(newIdentity(hookedFirst, probePublisher, 99), time.Now())
	a.wantFaults(t, 1, "at a time")
}

// Without topics for it there is no hook.
func TestADaemonAsksAboutTopicsThatAreHooked(t *testing.T) {
	a := newOffice(t)
	require.Contains(t, a.flags(), "--hooks-publish-topics=t.4")
	a.ledger.names = a.ledger.names[:hookedFirst]
	require.Empty(t, a.flags())
}

// A publisher is told of a refusal what the application said, and of nothing else.
func TestARefusalIsTheApplications(t *testing.T) {
	a := newOffice(t)
	p := a.ledger.payloads
	no, yes := a.thought(refuses), a.thought(lets)
	forbidden := func(id identity) *wire.Problem {
		return problem.New(wire.CodeForbidden, "change it", "%s", refusal(id))
	}
	require.True(t, wasForbidden(p, no, forbidden(no)))
	require.False(t, wasForbidden(p, yes, forbidden(yes)))
	require.False(t, wasForbidden(p, no, forbidden(yes)))
	require.False(t, wasForbidden(p, no, problem.New(wire.CodeLimited, "", "%s", refusal(no))))
}

// What the application refuses was not taken, answer or no, and is not seen later.
func TestWhatIsRefusedIsNotTaken(t *testing.T) {
	a := newOffice(t)
	id := a.thought(refuses)
	a.ledger.lostAnswer(id)
	unseen, _ := a.ledger.unseen(hookedFirst)
	require.Zero(t, unseen)
	a.take(id)
	require.Equal(t, map[Kind]int{Protocol: 1}, a.ledger.faults.count)
	let := a.thought(lets)
	a.take(let)
	a.ledger.refusedBy(let)
	require.Equal(t, map[Kind]int{Protocol: 2}, a.ledger.faults.count, "a subscriber may have it before")
}
