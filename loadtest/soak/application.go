package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/webhook"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An application is what the publish hook asks. It finds fault with what it is asked,
// has its opinion, and remembers what it was asked about, for the judge.
//
// It is safe for concurrent use. Whoever made it must close it.
type application struct {
	listener net.Listener
	server   *http.Server
	serving  sync.WaitGroup     // the listener's loop
	cancel   context.CancelFunc // ends all calls
	secret   string
	ledger   *ledger
	said     [opinions]atomic.Int64

	mu    sync.Mutex // guards the fields below
	asked map[identity]question
	busy  int // calls at this moment
}

// A question is what is remembered of a message that was asked about.
type question struct {
	last      time.Time // that it was
	consented bool
}

// Settings of the hook.
const (
	hookTimeout = 2 * time.Second
	hookCalls   = 3
)

func newApplication(l *ledger) (*application, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the application: %w", err)
	}
	a := &application{listener: listener, secret: webhook.NewSecret(), ledger: l, asked: map[identity]question{}}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	a.server = &http.Server{Handler: a, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	a.serving.Go(func() { _ = a.server.Serve(listener) })
	return a, nil
}

// close ends all calls, and returns when nobody serves any more.
func (a *application) close() {
	a.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), hookTimeout)
	defer cancel()
	_ = a.server.Shutdown(ctx)
	_ = a.server.Close()
	a.serving.Wait()
}

// flags have a daemon ask about the topics that are hooked, if there are any.
func (a *application) flags() []string {
	var topics []string
	for _, topic := range a.ledger.hooked() {
		topics = append(topics, a.ledger.names[topic])
	}
	if len(topics) == 0 {
		return nil
	}
	return []string{
		"--hooks-publish-url=http://" + a.listener.Addr().String() + "/publish", "--hooks-publish-topics=" + strings.Join(topics, ","),
		"--hooks-publish-timeout=" + hookTimeout.String(), fmt.Sprintf("--hooks-publish-calls=%d", hookCalls),
	}
}

// variable is what the daemon's environment has the secret in.
func (a *application) variable() string { return webhook.SecretVariable + "=" + a.secret }

// ServeHTTP is part of http.Handler.
func (a *application) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, mostAsked))
	if err != nil {
		return // the daemon was killed meanwhile
	}
	id, err := a.hear(r.Header, body, time.Now())
	if err != nil {
		a.fault("the application got an invalid request: %v", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o, thinks := a.enter(id, time.Now())
	defer a.leave()
	a.said[o].Add(1)
	if sleep(r.Context(), thinks) == nil {
		a.answer(w, id, o)
	}
}

// mostAsked bounds what is asked: the largest message in base64, and what is around it.
const mostAsked = 2*largestMessage + 64<<10

// hear returns which message is asked about, or what is wrong with the question.
func (a *application) hear(h http.Header, body []byte, now time.Time) (identity, error) {
	var q struct {
		Type    string           `json:"type"`
		Topic   string           `json:"topic"`
		Message wire.PublishItem `json:"message"`
	}
	if err := webhook.Check(h, body, webhook.KeyOf(a.secret), now); err != nil {
		return 0, err
	}
	if err := json.Unmarshal(body, &q); err != nil || q.Type != wire.HookPublish {
		return 0, fmt.Errorf("%.200q is not a request of the hook (%w)", body, err)
	}
	id, err := parseIdentity(payloadOf(&q.Message))
	switch topic := id.topic(); {
	case err != nil:
		return 0, err
	case topic >= len(a.ledger.names) || a.ledger.names[topic] != q.Topic:
		return 0, fmt.Errorf("%v is not of the topic %s", id, q.Topic)
	case !hooked(topic):
		return 0, fmt.Errorf("%v is of a topic that the hook is not for", id)
	}
	q.Message.Topic, q.Message.Client = q.Topic, nil
	if got, want := encoded(q.Message), encoded(a.itemOf(id, a.ledger.payloads.offered(id))); got != want {
		return 0, fmt.Errorf("%v was published as %.200q, but the application was asked about %.200q", id, want, got)
	}
	return id, nil
}

// payloadOf returns what stands in an item, without the quotes of JSON.
func payloadOf(i *wire.PublishItem) []byte {
	switch {
	case i.Text != nil:
		return []byte(*i.Text)
	case i.Base64 != nil:
		return *i.Base64
	}
	return []byte(strings.Trim(string(i.Data), `"`))
}

// itemOf is a message in a hook's JSON.
func (a *application) itemOf(id identity, f form) wire.PublishItem {
	i, body := wire.PublishItem{Topic: a.ledger.names[id.topic()], Type: f.mediaType}, a.ledger.payloads.body(id, f)
	switch f.mediaType {
	case "":
		i.Data = body
	case "text/plain":
		text := string(body)
		i.Text = &text
	default:
		i.Base64 = &body
	}
	if f.ttl > 0 {
		seconds := uint64(f.ttl / time.Second)
		i.TTL = &seconds
	}
	return i
}

func encoded(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(text)
}

// enter notes a call, and returns what is to be said.
func (a *application) enter(id identity, now time.Time) (o opinion, thinks time.Duration) {
	o, thinks = a.ledger.payloads.opinionOf(id)
	a.mu.Lock()
	defer a.mu.Unlock()
	was, again := a.asked[id]
	switch {
	case again && was.consented && now.Sub(was.last) < hookTimeout: // or it was too late to know of that
		a.fault("the application allowed %v, and was asked again", id)
	case again && o.again() != o:
		o, thinks = o.again(), 0
	}
	a.asked[id] = question{now, was.consented || o.consents()}
	// A daemon that has given a call up begins another before we have noticed.
	if a.busy++; a.busy > 2*hookCalls {
		a.fault("the application was asked about %d messages at a time; the limit is %d", a.busy, hookCalls)
	}
	return o, thinks
}

func (a *application) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy--
}

func (a *application) answer(w http.ResponseWriter, id identity, o opinion) {
	var said wire.HookAnswer
	switch o {
	case changes:
		item := a.itemOf(id, a.ledger.payloads.formOf(id))
		said.Message = &item
	case refuses:
		said.Refuse = &wire.HookRefusal{Detail: refusal(id)}
	case fails:
		http.Error(w, "the soak fails", http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, encoded(said))
}

func (a *application) fault(format string, args ...any) {
	a.ledger.faults.add(Fault{Kind: Hook, Who: "application", AtMS: int64(a.ledger.since(time.Now())), Detail: fmt.Sprintf(format, args...)})
}

// judge finds fault with what was published without a question, or without consent.
func (a *application) judge() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, topic := range a.ledger.hooked() {
		for _, id := range a.ledger.taken(topic) {
			if q, asked := a.asked[id]; !asked {
				a.fault("%v was published, but the application was not asked", id)
			} else if !q.consented {
				a.fault("%v was published, but the application did not allow it", id)
			}
		}
	}
}
