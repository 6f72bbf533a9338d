package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// maxMany is how many messages one request may publish: what its answer and the
// time it takes are bounded by.
const maxMany = 1000

// publishMany takes many messages, in their order, each as if it came by itself:
// what is wrong with one is its own result. The body is an array, or lines.
func (a *API) publishMany(w http.ResponseWriter, r *http.Request, p asker) error {
	if why := a.Sessions.Draining(); why != nil {
		return why
	}
	form, err := formOfMany(r)
	if err != nil {
		return err
	}
	body, err := readBody(w, r, maxRequestBytes)
	if err != nil {
		return err
	}
	items, err := form.split(body)
	if err != nil {
		return err
	}
	e := &publishingEach{api: a, request: r, asker: p, form: form}
	results, err := e.publish(items)
	if err != nil {
		return err
	}
	a.Metrics.HTTPPublishesOfMany.Inc()
	form.answer(a, w, results)
	return nil
}

// A manyForm is how many messages are written in a body, and their results in the
// answer.
type manyForm struct {
	split  func(body []byte) (items [][]byte, err error)
	read   func(item []byte) (*wire.PublishItem, error)
	answer func(a *API, w http.ResponseWriter, results []wire.PublishResult)
}

var (
	manyInArray    = &manyForm{splitArray, readItem, (*API).answerArray}
	manyInLines    = &manyForm{splitLines, readItem, (*API).answerLines}
	manyInSequence = &manyForm{splitSequence, readCBORItem, (*API).answerSequence}
)

// sequenceType is the media type of a CBOR sequence (RFC 8742).
const sequenceType = "application/cbor-seq"

// formOfMany returns how the body is read and answered. What would be said of one
// message is not said of the request: it would seem to hold for all.
func formOfMany(r *http.Request) (*manyForm, error) {
	if r.URL.RawQuery != "" || r.Header["Idempotency-Key"] != nil {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, "give each message its own ttl, key, client and id",
			"publishing many has no query and no Idempotency-Key header")
	}
	mediaType, isJSON, err := mediaTypeOf(r.Header["Content-Type"])
	if err != nil {
		return nil, err
	}
	if isJSON {
		return manyInArray, nil
	}
	switch base, _, _ := mime.ParseMediaType(mediaType); base {
	case frame.NDJSON.ContentType():
		return manyInLines, nil
	case sequenceType:
		return manyInSequence, nil
	}
	return nil, wire.NewProblem(wire.CodeUnsupportedType, "send an array as application/json, lines as application/x-ndjson, or a sequence as "+sequenceType,
		"many messages do not come as %.80q", mediaType)
}

// splitArray returns the elements of body, once all of it is known to be an array.
func splitArray(body []byte) (items [][]byte, err error) {
	var whole json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		return nil, unreadable(err)
	}
	dec := json.NewDecoder(bytes.NewReader(whole))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('[') {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, "send [{…},{…}], or one message to its topic's path", "the body is not an array")
	}
	for dec.More() {
		if len(items) == maxMany {
			return nil, tooMany()
		}
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			panic("BUG: an array that was read cannot be read: " + err.Error())
		}
		items = append(items, item)
	}
	return items, nil
}

// splitLines returns the lines of body, but for empty ones.
func splitLines(body []byte) (items [][]byte, err error) {
	for line := range bytes.Lines(body) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(items) == maxMany {
			return nil, tooMany()
		}
		items = append(items, line)
	}
	return items, nil
}

// splitSequence returns the items of body, which are whole, and not checked further.
func splitSequence(body []byte) (items [][]byte, err error) {
	for len(body) > 0 {
		if len(items) == maxMany {
			return nil, tooMany()
		}
		item, rest, err := cbor.Cut(body)
		if err != nil {
			return nil, wire.NewProblem(wire.CodeInvalidRequest, "send one map after another, whole", "item %d is no CBOR: %v", len(items)+1, err)
		}
		items, body = append(items, item), rest
	}
	return items, nil
}

func tooMany() *wire.Problem {
	return wire.NewProblem(wire.CodeMessageTooLarge, "send less at a time", "the body has more than %d messages", maxMany)
}

// publishingEach publishes many messages, one after the other. They are one call,
// whatever is in it; but the application takes its time over each that it is asked
// about, and before the next of those others who wait for a place have their turn.
type publishingEach struct {
	api     *API
	request *http.Request
	asker   asker
	form    *manyForm

	call  limit.Call // none, if none could begin
	asked bool       // in this call, about a message
	full  error      // why no other could begin: what is left does not wait for one, too
	late  *limit.Refusal
}

// publish returns a result each, or an error if the first cannot have a place. If some
// are refused to a client that does not wait as it is told, it hears of all late.
func (e *publishingEach) publish(items [][]byte) ([]wire.PublishResult, error) {
	if err := e.takeTurn(); err != nil {
		return nil, err
	}
	defer func() { e.call.End() }()
	results := make([]wire.PublishResult, len(items))
	for i, raw := range items {
		results[i] = e.publishOne(raw)
	}
	e.giveUp()
	if e.late != nil {
		e.api.Limiter.Hold(e.request.Context(), e.late) // what was published is told in any case
	}
	return results, nil
}

func (e *publishingEach) takeTurn() error {
	e.giveUp()
	if e.full == nil {
		e.call, e.full = e.api.Limiter.Begin(e.request.Context(), e.asker.Who)
	}
	return e.full
}

func (e *publishingEach) giveUp() {
	e.call.End()
	e.call, e.asked = limit.Call{}, false
}

// publishOne publishes one of many.
func (e *publishingEach) publishOne(raw []byte) wire.PublishResult {
	published, err := e.take(raw)
	if err != nil {
		if refusal, ok := errors.AsType[*limit.Refusal](err); ok && refusal.Hold > 0 {
			e.late = refusal
		}
		return wire.PublishResult{Problem: e.api.problemOf(e.request, err)}
	}
	return wire.PublishResult{Published: &published}
}

func (e *publishingEach) take(raw []byte) (wire.Published, error) {
	item, err := e.form.read(raw)
	if err != nil {
		return wire.Published{}, err
	}
	asks := e.api.Hook.Wants(item.Topic)
	if asks && e.asked || e.call == (limit.Call{}) {
		if err := e.takeTurn(); err != nil {
			return wire.Published{}, err
		}
	}
	e.asked = e.asked || asks
	return e.api.takeItem(e.request.Context(), e.asker, item)
}

// takeItem publishes a message that came with others, or on a connection that goes
// both ways.
func (a *API) takeItem(ctx context.Context, p asker, item *wire.PublishItem) (wire.Published, error) {
	if err := a.Limiter.Admit(limit.Publishes, p.Who); err != nil {
		return wire.Published{}, err
	}
	topic, err := checkTopic(item.Topic)
	if err != nil {
		return wire.Published{}, err
	}
	if err := a.mayPublish(p, topic); err != nil {
		return wire.Published{}, err
	}
	m, body, err := messageOfItem(item)
	if err != nil {
		return wire.Published{}, err
	}
	return a.takeMessage(ctx, p.Principal, m, body)
}

func readItem(raw []byte) (*wire.PublishItem, error) {
	if !bytes.HasPrefix(raw, []byte("{")) {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, `write it as {"topic":"a","data":1}`, "the message is not an object")
	}
	if !utf8.Valid(raw) { // encoding/json would replace what is not
		return nil, wire.NewProblem(wire.CodeInvalidBody, "send UTF-8, and other bytes in base64", "the message is not valid UTF-8")
	}
	item := &wire.PublishItem{}
	return item, decode(raw, item)
}

func readCBORItem(raw []byte) (*wire.PublishItem, error) {
	item, err := wire.ParsePublishItem(raw)
	if err != nil {
		return nil, unreadable(err)
	}
	item.CBOR = bytes.Clone(item.CBOR) // of the body, it would keep the rest
	return item, nil
}

// messageOfItem is messageOf for one of many.
func messageOfItem(item *wire.PublishItem) (m *message, body []byte, err error) {
	m = newMessage(item.Topic)
	mediaType, body, err := payloadOf(item)
	if err != nil {
		return nil, nil, err
	}
	if m.Type, m.isJSON, err = mediaTypeOf([]string{mediaType}); err != nil {
		return nil, nil, err
	}
	return m, body, m.takeMembers(item)
}

// payloadOf returns what is published, and its type.
func payloadOf(item *wire.PublishItem) (mediaType string, body []byte, err error) {
	value, typed := item.Data != nil || item.CBOR != nil, item.Type != ""
	switch {
	case value && (typed || item.Text != nil || item.Base64 != nil):
	case item.CBOR != nil:
		return wire.CBORType, item.CBOR, nil
	case value:
		return "application/json", item.Data, nil
	case typed && item.Text != nil && item.Base64 == nil:
		return item.Type, []byte(*item.Text), nil
	case typed && item.Base64 != nil && item.Text == nil:
		return item.Type, *item.Base64, nil
	}
	return "", nil, wire.NewProblem(wire.CodeInvalidRequest, "give data, or type with either text or base64 (in CBOR, bytes)", "the message has no payload, or more than one")
}

// takeMembers takes what else is said of a message.
func (m *message) takeMembers(item *wire.PublishItem) error {
	if ttl := item.TTL; ttl != nil {
		if *ttl < 1 || *ttl > maxTTLSeconds {
			return outside("ttl", strconv.FormatUint(*ttl, 10), 1, maxTTLSeconds)
		}
		m.ttl = time.Duration(*ttl) * time.Second
	}
	if item.Client != nil {
		if err := checkClient(*item.Client); err != nil {
			return err
		}
		m.Client = *item.Client
	}
	if item.ID != nil {
		if err := wire.CheckID(*item.ID); err != nil {
			return badID(err)
		}
		m.ID = *item.ID
	}
	m.Key = item.Key
	return checkKey(m.Key)
}

func (a *API) answerArray(w http.ResponseWriter, results []wire.PublishResult) {
	w.Header().Set("Content-Type", "application/json")
	a.writeBody(w, http.StatusOK, results)
}

func (a *API) answerLines(w http.ResponseWriter, results []wire.PublishResult) {
	var lines []byte
	for _, result := range results {
		lines = append(lines, lineOf(result)...)
	}
	w.Header().Set("Content-Type", frame.NDJSON.ContentType())
	a.writeWhole(w, http.StatusOK, lines)
}

func (a *API) answerSequence(w http.ResponseWriter, results []wire.PublishResult) {
	var items []byte
	for _, result := range results {
		items = cbor.AppendFromJSON(items, lineOf(result))
	}
	w.Header().Set("Content-Type", sequenceType)
	a.writeWhole(w, http.StatusOK, items)
}
