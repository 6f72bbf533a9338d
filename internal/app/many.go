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
// calls before the next message with a hook. The messages go to the log together, and the
// request waits once.
type manyPublish struct {
	app    *App
	ctx    context.Context // the request's
	caller Caller
	slot   slot
	asked  bool           // the slot was used for a message with a hook
	late   *limit.Refusal // a refusal that delays the answer; nil: none

	results []wire.PublishResult
	commit  *broker.Commit // nil: publishes do not wait for the log
	inLog   []int          // the index of the n-th message that the log gets
	sent    int            // number of messages that the log gets
	waiting sync.WaitGroup // for the log
}

// PublishMany publishes the messages in the body in order, each like Publish, and calls
// answer with a result for each, in the format of the request. An error refuses the whole
// request. A delayed refusal of one message delays the answer. The answer holds no slot.
func (a *App) PublishMany(ctx context.Context, c Caller, p Publish, answer func(contentType string, parts iter.Seq[[]byte]) error) (err error) {
	var span *observe.Publish
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
	form, err := formOfMany(p)
	if err != nil {
		return err
	}
	body, err := p.Body(MaxRequestBytes)
	if err != nil {
		return err
	}
	var items [][]byte
	err = a.inTurn(ctx, &c, len(body) > largeBody, func() (err error) { items, err = form.split(body); return err })
	if err != nil {
		return err
	}
	ctx, span = a.cfg.Traces.PublishMany(ctx)
	m := &manyPublish{app: a, ctx: ctx, caller: c, results: make([]wire.PublishResult, len(items)), inLog: make([]int, len(items))}
	defer m.slot.end()
	if err := m.slot.take(ctx, a, &c); err != nil {
		return err
	}
	m.commit = a.cfg.Broker.NewCommit(m.done)
	defer m.commit.Send() // also if a message panics
	for i, raw := range items {
		if err = m.publish(form, raw, i); err != nil {
			return err
		}
	}
	m.commit.Send()
	m.waiting.Wait()
	m.slot.end()
	if m.late != nil {
		a.cfg.Limiter.Hold(ctx, m.late) // the client gets the results in any case
	}
	return answer(form.contentType, form.parts(m.results))
}

// publish publishes the i-th message. An error means that the client has left.
func (m *manyPublish) publish(form *manyForm, raw []byte, i int) error {
	item, err := form.read(raw)
	var published wire.Published
	if err == nil {
		to := m.app.cfg.Broker.Route(item.Topic)
		hook := to.Rule().Hook
		if hook {
			m.commit.Send() // the messages before it do not wait for the hook
		}
		if hook && m.asked {
			m.slot.end() // publishItem takes another
		}
		m.asked = m.asked || hook
		published, err = m.app.publishItem(m.ctx, &m.caller, &m.slot, to.In(m.commit), item)
	}
	if errors.Is(err, ErrPending) {
		m.inLog[m.sent] = i
		m.sent++
		m.waiting.Add(1)
		return nil
	}
	return m.note(i, published, err)
}

// done notes the result of the n-th message that the log got.
func (m *manyPublish) done(n int, published wire.Published, err error) {
	defer m.waiting.Done()
	_ = m.note(m.inLog[n], published, err)
}

// note notes the result of the i-th message. An error means that the client has left.
func (m *manyPublish) note(i int, published wire.Published, err error) error {
	if err == nil {
		m.results[i].Published = &published
		return nil
	}
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok && refusal.Hold > 0 {
		m.late = refusal
	}
	if m.results[i].Problem = m.app.Problem(err); m.results[i].Problem == nil {
		return err
	}
	return nil
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
func formOfMany(p Publish) (*manyForm, error) {
	if p.Query != "" || p.IdempotencyKey.Count > 0 {
		return nil, problem.New(wire.CodeInvalidRequest, "set ttl, key, client and id in each message",
			"a publish of many messages must have neither a query nor an Idempotency-Key header")
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
