package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"mime"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// Answer returns results in the format of the request, in parts.
func (f *ManyForm) Answer(results []wire.PublishResult) iter.Seq[[]byte] {
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

// A ManyForm is a format of many messages in a body, and of their results.
type ManyForm struct {
	// Split returns the messages in a body, and Item reads one.
	Split func(body []byte) (items [][]byte, err error)
	Item  func(item []byte) (*wire.PublishItem, error)

	// Of the answer.
	ContentType          string
	begin, between, last string
	append               func(dst, resultInJSON []byte) []byte
}

var (
	manyInArray    = &ManyForm{splitArray, readItem, "application/json", "[", ",", "]\n", appendJSON}
	manyInLines    = &ManyForm{splitLines, readItem, frame.NDJSON.ContentType(), "", "", "", appendLine}
	manyInSequence = &ManyForm{splitSequence, readCBORItem, sequenceType, "", "", "", cbor.AppendFromJSON}
)

func appendJSON(dst, text []byte) []byte { return append(dst, text...) }
func appendLine(dst, text []byte) []byte { return append(appendJSON(dst, text), '\n') }

// sequenceType is the media type of a CBOR sequence (RFC 8742).
const sequenceType = "application/cbor-seq"

// ManyFormOf returns the format of the request. It refuses parameters of a single message,
// which would seem to apply to all.
func ManyFormOf(h Head) (*ManyForm, error) {
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
