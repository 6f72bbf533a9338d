package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"mime"
	"sync"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A manyPublish publishes the messages of one request, one after the other. They share a
// slot. The hook may take long for each message, so the request gives its slot to other
// calls before the next message with a hook. The messages wait for the log together.
type manyPublish struct {
	app     *App
	ctx     context.Context // the request's
	caller  Caller
	slot    slot
	asked   bool // the slot was used for a message with a hook
	results []broker.Result
	waiting sync.WaitGroup // for the log
}

// PublishMany publishes the messages in the body in order, each like Publish, and calls
// answer with a result for each, in the format of the request. An error refuses the whole
// request. A delayed refusal of one message delays the answer. The answer holds no slot.
func (a *App) PublishMany(ctx context.Context, c Caller, h Head, read Body, answer func(contentType string, parts iter.Seq[[]byte]) error) (err error) {
	var span *observe.PublishSpan
	defer func() { span.End(wire.Published{}, err) }()
	defer a.recovered(&err)
	if why := a.cfg.Sessions.Draining(); why != nil {
		return why
	}
	if err := a.admit(ctx, &c, limit.Requests); err != nil {
		return err
	}
	if err := c.grant.AllowSome(auth.Publish); err != nil {
		return err
	}
	form, err := formOfMany(h)
	if err != nil {
		return err
	}
	body, err := read(MaxRequestBytes)
	if err != nil {
		return err
	}
	var items [][]byte
	err = a.inTurn(ctx, &c, len(body) > largeBody, func() (err error) { items, err = form.split(body); return err })
	if err != nil {
		return err
	}
	ctx, span = a.cfg.Traces.PublishMany(ctx)
	m := &manyPublish{app: a, ctx: ctx, caller: c, results: make([]broker.Result, len(items))}
	defer m.slot.end()
	if err := m.slot.take(ctx, a, &c); err != nil {
		return err
	}
	for i, raw := range items {
		if err := m.publish(form, raw, &m.results[i]); err != nil {
			return err
		}
	}
	m.waiting.Wait()
	m.slot.end()
	results, err := m.answers()
	if err != nil {
		return err
	}
	return answer(form.contentType, form.parts(results))
}

// publish publishes a message. The log may set the result later. An error means that the client has left.
func (m *manyPublish) publish(form *manyForm, raw []byte, result *broker.Result) error {
	item, err := form.read(raw)
	if err != nil {
		result.Err = err
		return nil
	}
	p, message, err := m.app.beginItem(m.ctx, m.caller, item)
	if err != nil {
		result.Err = err
		return nil
	}
	if p.to.Rule().Hook {
		if m.asked {
			m.slot.end()
		}
		m.asked = true
	}
	if err := m.slot.take(m.ctx, m.app, &m.caller); err != nil { // of those after a wait in vain, none waits
		result.Err = err
		return m.ctx.Err()
	}
	p.slot.held = true // it is m.slot
	var over bool
	if result.Published, over, result.Err = p.Send(message); over {
		return nil
	}
	m.waiting.Add(1)
	p.done = func(published wire.Published, err error) {
		result.Published, result.Err = published, err
		m.waiting.Done()
	}
	p.finish() // the next message follows it
	return m.ctx.Err()
}

// answers returns the results. A refusal that is delayed delays them. An error means that the
// client has left.
func (m *manyPublish) answers() ([]wire.PublishResult, error) {
	answers := make([]wire.PublishResult, len(m.results))
	var late *limit.Refusal
	for i, r := range m.results {
		if r.Err == nil {
			answers[i].Published = &r.Published
			continue
		}
		if refusal, ok := errors.AsType[*limit.Refusal](r.Err); ok && refusal.Hold > 0 {
			late = refusal
		}
		if answers[i].Problem = m.app.Problem(r.Err); answers[i].Problem == nil {
			return nil, r.Err
		}
	}
	if late != nil {
		m.app.cfg.Limiter.Hold(m.ctx, late) // the client gets the results in any case
	}
	return answers, nil
}

// parts returns results in the format of the request, in parts.
func (f *manyForm) parts(results []wire.PublishResult) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		part := []byte(f.begin)
		for i, result := range results {
			if i > 0 {
				part = append(part, f.between...)
			}
			if part = f.append(part, InJSON(result)); !yield(part) {
				return
			}
			part = part[:0]
		}
		yield(append(part, f.last...))
	}
}

// A manyForm is a format of many messages in a body, and of their results.
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

// formOfMany returns the format of the request. It refuses parameters of a single message,
// which would seem to apply to all.
func formOfMany(h Head) (*manyForm, error) {
	if h.Query != "" || h.IdempotencyKey.Count > 0 {
		return nil, problem.New(wire.CodeInvalidRequest, "set ttl, key, client and id in each message",
			"a publish of many messages must have neither a query nor an Idempotency-Key header")
	}
	mediaType, isJSON, err := mediaTypeOf(h.ContentType)
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
	return nil, problem.New(wire.CodeUnsupportedType, "send an array as application/json, lines as application/x-ndjson, or a sequence as "+sequenceType,
		"Content-Type %s is not supported for many messages", wire.Quote(mediaType))
}

// maxMany is how many messages one request may publish. It bounds the answer and the time
// that the request takes.
const maxMany = 1000

func tooMany() *wire.Problem {
	return problem.New(wire.CodeMessageTooLarge, "send fewer messages in one request", "a body must have at most %d messages", maxMany)
}

// splitArray returns the elements of an array.
func splitArray(body []byte) (items [][]byte, err error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	switch begin, err := dec.Token(); {
	case err != nil:
		return nil, cutShort(err)
	case begin != json.Delim('['):
		return nil, problem.New(wire.CodeInvalidRequest, "send an array: [{…},{…}]; or publish one message at the path of its topic", "the body is not an array")
	}
	for dec.More() {
		if len(items) == maxMany {
			return nil, tooMany()
		}
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			return nil, cutShort(err)
		}
		items = append(items, item)
	}
	if _, err := dec.Token(); err != nil {
		return nil, cutShort(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, problem.New(wire.CodeInvalidRequest, "send one JSON value", "the body has more than one JSON value")
	}
	return items, nil
}

// cutShort returns the problem for an error of a decoder before the end of an array.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return unreadable(err)
}

// splitLines returns the lines that are not empty.
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

// splitSequence returns the items. They are whole, but not checked otherwise.
func splitSequence(body []byte) (items [][]byte, err error) {
	for len(body) > 0 {
		if len(items) == maxMany {
			return nil, tooMany()
		}
		item, rest, err := cbor.Cut(body)
		if err != nil {
			return nil, problem.New(wire.CodeInvalidRequest, "send a sequence of complete maps", "item %d is not valid CBOR: %v", len(items)+1, err)
		}
		items, body = append(items, item), rest
	}
	return items, nil
}
