package httpapi

import (
	"context"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// publish takes one message: the first room on its way. The lane's way in is
// Publish, in lane.go, and that of many publishMany, in many.go; all go through
// mayPublish, takeMessage and the broker.
func (a *API) publish(w http.ResponseWriter, r *http.Request, p asker) error {
	topic, err := topicOf(r)
	if err != nil {
		return err
	}
	if err := a.mayPublish(p, topic); err != nil {
		return err
	}
	m, err := messageOf(topic, r.URL.RawQuery, r.Header["Content-Type"], r.Header["Idempotency-Key"])
	if err != nil {
		return err
	}
	body, err := readBody(w, r, a.Limits().MessageBytes)
	if err != nil {
		return err
	}
	published, err := a.takeInTurn(r.Context(), p, m, body)
	if err != nil {
		return err
	}
	a.Metrics.HTTPPublishes.Inc()
	if a.lane != nil && !a.Hook.Wants(topic) && a.lane.TakePublish(w, r, published) { // the next would come back
		return nil
	}
	return a.writeJSON(w, http.StatusOK, published)
}

// mayPublish asks everyone who may refuse, before the body is read.
func (a *API) mayPublish(p asker, topic string) error {
	if why := a.Sessions.Draining(); why != nil {
		return why
	}
	if wire.ReservedTopic(topic) {
		return reserved(topic)
	}
	if err := a.Authority.Allow(p.Principal, auth.Publish, topic); err != nil {
		return err
	}
	if err := a.Limiter.AdmitTopic(topic, p.Who); err != nil {
		return err
	}
	return a.mayMake(p, topic)
}

func reserved(topic string) *wire.Problem {
	return wire.NewProblem(wire.CodeReservedTopic, "begin the topic with another character than '_'", "topic %q is the daemon's own", topic)
}

// A message is what a publish says, but for its body.
type message struct {
	wire.Message
	ttl     time.Duration
	isJSON  bool
	session string // of the publisher, if it says so
}

// messageOf reads what stands in the request line and the headers, by the rules of
// PROTOCOL.md, Publishing.
func messageOf(topic, rawQuery string, contentTypes, idempotencyKeys []string) (*message, error) {
	m := newMessage(topic)
	var err error
	if m.Type, m.isJSON, err = mediaTypeOf(contentTypes); err != nil {
		return nil, err
	}
	if m.ID, err = idOf(idempotencyKeys); err != nil || rawQuery == "" {
		return m, err
	}
	return m, m.readQuery(rawQuery)
}

func newMessage(topic string) *message {
	return &message{Message: wire.Message{Position: wire.Position{Topic: topic}}}
}

func (m *message) readQuery(raw string) error {
	q, err := parseQuery(raw)
	if err != nil {
		return err
	}
	for name := range q {
		if !slices.Contains(publishParameters, name) {
			return wire.NewProblem(wire.CodeInvalidRequest, "use "+strings.Join(publishParameters, ", "), "publishing knows no %.40q in the query", name)
		}
	}
	ttl, err := number(q, "ttl", 1, maxTTLSeconds, 0)
	if err != nil {
		return err
	}
	m.ttl = time.Duration(ttl) * time.Second
	if m.Key, err = keyOf(q); err != nil {
		return err
	}
	if m.session, err = one(q, "session"); err != nil {
		return err
	}
	m.Client, err = clientOf(q)
	return err
}

var publishParameters = []string{"ttl", "key", "client", "session"}

// takeInTurn is takeMessage once there is a place for the call.
func (a *API) takeInTurn(ctx context.Context, p asker, m *message, body []byte) (wire.Published, error) {
	done, err := a.publishing(p, m.session) // those that wait, too
	if err != nil {
		return wire.Published{}, err
	}
	defer done()
	call, err := a.Limiter.Begin(ctx, p.Who)
	if err != nil {
		return wire.Published{}, err
	}
	defer call.End()
	return a.takeMessage(ctx, p.Principal, m, body)
}

// takeMessage publishes m with a body that nobody else changes, once the application
// was asked, if a hook is for the topic. If another publish with its idempotency key is
// under way it waits for that, at most until ctx ends.
func (a *API) takeMessage(ctx context.Context, p auth.Principal, m *message, body []byte) (wire.Published, error) {
	if len(body) > a.Limits().MessageBytes {
		return wire.Published{}, tooLarge(a.Limits().MessageBytes)
	}
	if err := m.setPayload(body); err != nil {
		return wire.Published{}, err
	}
	if a.Hook.Wants(m.Position.Topic) {
		return a.publishAsked(ctx, p, m)
	}
	if m.ID != "" {
		return a.Broker.PublishOnce(ctx, p.Name, &m.Message, m.ttl, time.Now())
	}
	return a.Broker.Publish(&m.Message, m.ttl, time.Now())
}

// setPayload makes body what is published, if it is what its type says.
func (m *message) setPayload(body []byte) (err error) {
	switch {
	case m.isJSON:
		if m.Data, err = wire.CompactJSON(body); err != nil {
			return wire.NewProblem(wire.CodeInvalidBody, "send one JSON value, or name another Content-Type", "%v", err)
		}
	case m.Type == wire.CBORType:
		if err := m.SetCBOR(body); err != nil {
			return wire.NewProblem(wire.CodeInvalidBody, "send one CBOR item, or name another Content-Type", "%v", err)
		}
	default:
		m.Data = body
	}
	return nil
}

// maxTTLSeconds is a year: longer than any history.
const maxTTLSeconds = 365 * 24 * 3600

func keyOf(q url.Values) (string, error) {
	key, err := one(q, "key")
	if err == nil {
		err = checkKey(key)
	}
	return strings.Clone(key), err // a substring would keep the whole request line
}

func checkKey(key string) error {
	if len(key) > wire.MaxKeyBytes || !utf8.ValidString(key) {
		return wire.NewProblem(wire.CodeInvalidRequest, "use a shorter key, in UTF-8", "key is not UTF-8 of at most %d bytes", wire.MaxKeyBytes)
	}
	return nil
}

// clientOf returns what the client calls itself, or "" if it does not.
func clientOf(q url.Values) (string, error) {
	client, err := one(q, "client")
	if err == nil && q.Has("client") {
		err = checkClient(client)
	}
	return strings.Clone(client), err
}

func checkClient(client string) error {
	if err := wire.CheckClient(client); err != nil {
		return wire.NewProblem(wire.CodeInvalidRequest, "choose another client, such as a UUID, or leave it out", "%v", err)
	}
	return nil
}

// idOf returns the idempotency key, or "" if there is none.
func idOf(given []string) (string, error) {
	switch len(given) {
	case 0:
		return "", nil
	case 1:
		id, err := wire.ParseIdempotencyKey(given[0])
		return id, badID(err)
	}
	return "", wire.NewProblem(wire.CodeInvalidRequest, "send one", "there are %d Idempotency-Key headers", len(given))
}

// badID makes a problem of what is wrong with an idempotency key, if anything is.
func badID(err error) error {
	if err == nil {
		return nil
	}
	return wire.NewProblem(wire.CodeInvalidRequest, "make a new key for each message, such as a UUID, and send it again with each attempt", "%v", err)
}

// mediaTypeOf returns the type that the message travels under: empty for JSON. CBOR
// may turn out to be JSON, too.
func mediaTypeOf(given []string) (mediaType string, isJSON bool, err error) {
	switch {
	case len(given) == 1 && given[0] == "application/json":
		return "", true, nil // nearly all
	case len(given) > 1:
		return "", false, wire.NewProblem(wire.CodeInvalidRequest, "send one", "there are %d Content-Type headers", len(given))
	case len(given) == 0 || strings.TrimSpace(given[0]) == "":
		return "application/octet-stream", false, nil // RFC 9110, section 8.3
	}
	mediaType = strings.TrimSpace(given[0])
	base, params, err := mime.ParseMediaType(mediaType)
	if err != nil || len(mediaType) > wire.MaxTypeBytes || !utf8.ValidString(mediaType) {
		return "", false, wire.NewProblem(wire.CodeInvalidRequest, "name a media type such as text/plain", "Content-Type %.80q cannot be read", mediaType)
	}
	switch base {
	case "application/x-www-form-urlencoded":
		return "", false, wire.NewProblem(wire.CodeUnsupportedType,
			"say what the body is: with curl, --json '…', or -H 'Content-Type: text/plain' -d …", "the body's type is that of a form, which is seldom meant")
	case "application/json":
		if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
			return "", false, wire.NewProblem(wire.CodeUnsupportedType, "send UTF-8", "JSON in %.40q is not taken (RFC 8259, section 8.1)", cs)
		}
		return "", true, nil
	case wire.CBORType:
		return wire.CBORType, false, nil
	}
	return strings.Clone(mediaType), false, nil
}
