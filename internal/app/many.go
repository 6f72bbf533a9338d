package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"mime"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A manyPublish publishes the messages of one request, one after the other. They share
// a slot. But the application takes its time over each message that it is asked about:
// the request gives its slot up before the next of those, so that others have a turn.
type manyPublish struct {
	app    *App
	ctx    context.Context // the request's
	caller Caller
	slot   slot
	asked  bool           // the application, since the slot was taken
	late   *limit.Refusal // to be told late
}

// A Many is many messages as a request has them.
type Many struct {
	Query                        string
	ContentType, IdempotencyKeys []string // the headers' values
	Body                         Body
}

// PublishMany publishes many messages, in their order, each as if it came by itself:
// what is wrong with one is its own result. It calls answer with the results. An error is
// the whole request's. If some messages are refused to a client that does not wait as it
// is told, the answer comes late, and holds no slot.
func (a *App) PublishMany(ctx context.Context, c Caller, p Many, answer func(Results) error) (err error) {
	defer a.recovered(&err)
	if why := a.cfg.Sessions.Draining(); why != nil {
		return why
	}
	if err := a.admit(&c, limit.Requests); err != nil {
		return err
	}
	form, err := formOfMany(p)
	if err != nil {
		return err
	}
	body, err := p.Body(MaxRequestBytes)
	if err != nil {
		return err
	}
	items, err := form.split(body)
	if err != nil {
		return err
	}
	m := &manyPublish{app: a, ctx: ctx, caller: c}
	defer m.slot.end()
	if err := m.slot.take(ctx, a, &c); err != nil {
		return err
	}
	results := Results{ContentType: form.contentType, form: form, each: make([]wire.PublishResult, len(items))}
	for i, raw := range items {
		if results.each[i], err = m.publish(form, raw); err != nil {
			return err
		}
	}
	if m.late != nil {
		m.slot.end()
		a.cfg.Limiter.Hold(ctx, m.late) // what was published is told in any case
	}
	return answer(results)
}

// publish publishes one of many. An error says that nobody is left to be told.
func (m *manyPublish) publish(form *manyForm, raw []byte) (wire.PublishResult, error) {
	item, err := form.read(raw)
	var published wire.Published
	if err == nil {
		to := m.app.cfg.Broker.Route(item.Topic)
		m.maybeGiveUpSlot(to.Rule().Hook)
		published, err = m.app.publishItem(m.ctx, &m.caller, &m.slot, to, item)
	}
	if err == nil {
		return wire.PublishResult{Published: &published}, nil
	}
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok && refusal.Hold > 0 {
		m.late = refusal
	}
	problem := m.app.Problem(err)
	if problem == nil {
		return wire.PublishResult{}, err
	}
	return wire.PublishResult{Problem: problem}, nil
}

func (m *manyPublish) maybeGiveUpSlot(asks bool) {
	if asks && m.asked {
		m.slot.end()
		m.asked = false
	}
	m.asked = m.asked || asks
}

// Results are what became of many messages.
type Results struct {
	ContentType string
	form        *manyForm
	each        []wire.PublishResult
}

// Parts returns the results in the form of the request, in parts.
func (r Results) Parts() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		part := []byte(r.form.begin)
		for i, result := range r.each {
			if i > 0 {
				part = append(part, r.form.between...)
			}
			text, err := json.Marshal(result)
			if err != nil {
				panic("BUG: a result does not marshal: " + err.Error())
			}
			if part = r.form.append(part, text); !yield(part) {
				return
			}
			part = part[:0]
		}
		yield(append(part, r.form.last...))
	}
}

// A manyForm is how many messages are written in a body, and their results in the
// answer.
type manyForm struct {
	split func(body []byte) (items [][]byte, err error)
	read  func(item []byte) (*wire.PublishItem, error)

	// Of the answer.
	contentType          string
	begin, between, last string
	append               func(dst, resultInJSON []byte) []byte
}

var (
	manyInArray    = &manyForm{splitArray, readItem, "application/json", "[", ",", "]\n", appendJSON}
	manyInLines    = &manyForm{splitLines, readItem, frame.NDJSON.ContentType(), "", "", "", appendLine}
	manyInSequence = &manyForm{splitSequence, readCBORItem, sequenceType, "", "", "", cbor.AppendFromJSON}
)

func appendJSON(dst, text []byte) []byte { return append(dst, text...) }
func appendLine(dst, text []byte) []byte { return append(appendJSON(dst, text), '\n') }

// sequenceType is the media type of a CBOR sequence (RFC 8742).
const sequenceType = "application/cbor-seq"

// formOfMany returns how the body is read and answered. What would be said of one
// message is not said of the request: it would seem to hold for all.
func formOfMany(p Many) (*manyForm, error) {
	if p.Query != "" || p.IdempotencyKeys != nil {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, "give each message its own ttl, key, client and id",
			"publishing many has no query and no Idempotency-Key header")
	}
	mediaType, isJSON, err := mediaTypeOf(p.ContentType)
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
		"many messages do not come as %s", wire.Quote(mediaType))
}

// maxMany is how many messages one request may publish: what its answer and the
// time it takes are bounded by.
const maxMany = 1000

func tooMany() *wire.Problem {
	return wire.NewProblem(wire.CodeMessageTooLarge, "send less at a time", "the body has more than %d messages", maxMany)
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
