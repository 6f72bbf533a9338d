package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A message is what a publish says, but for its body until setPayload. It is held as long
// as the message is.
type message struct {
	wire.Message
	ttl     time.Duration
	isJSON  bool
	session string // of the publisher, if it says so
}

func newMessage(topic string) *message {
	return &message{Message: wire.Message{Position: wire.Position{Topic: topic}}}
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

func (m *message) readQuery(raw string) error {
	q, err := parseQuery(raw)
	if err != nil {
		return err
	}
	for name := range q {
		if !slices.Contains(publishParameters, name) {
			return wire.NewProblem(wire.CodeInvalidRequest, "use "+strings.Join(publishParameters, ", "), "publishing knows no %s in the query", wire.Quote(name))
		}
	}
	ttl, err := number(q, "ttl", 1, MaxTTLSeconds, 0)
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

// MaxTTLSeconds is a year: longer than any history.
const MaxTTLSeconds = 365 * 24 * 3600

// setPayload makes body what is published, if it is what its type says.
func (m *message) setPayload(body []byte, most int) (err error) {
	if len(body) > most {
		return TooLarge(most)
	}
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

// become makes m what the application has made of it, under the rules for what is
// published. Topic, client and id stay. With an error m is as it was.
func (m *message) become(item *wire.PublishItem, most int) error {
	other, body, err := messageOfItem(item)
	if err != nil {
		return err
	}
	if err := other.setPayload(body, most); err != nil {
		return err
	}
	other.Position, other.Client, other.ID = m.Position, m.Client, m.ID
	*m = *other
	return nil
}

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
		id, err := parseIdempotencyKey(given[0])
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
		return "", false, wire.NewProblem(wire.CodeInvalidRequest, "name a media type such as text/plain", "Content-Type %s cannot be read", wire.Quote(mediaType))
	}
	switch base {
	case "application/x-www-form-urlencoded":
		return "", false, wire.NewProblem(wire.CodeUnsupportedType,
			"say what the body is: with curl, --json '…', or -H 'Content-Type: text/plain' -d …", "the body's type is that of a form, which is seldom meant")
	case "application/json":
		if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
			return "", false, wire.NewProblem(wire.CodeUnsupportedType, "send UTF-8", "JSON in %s is not taken (RFC 8259, section 8.1)", wire.Quote(cs))
		}
		return "", true, nil
	case wire.CBORType:
		return wire.CBORType, false, nil
	}
	return strings.Clone(mediaType), false, nil
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
		if *ttl < 1 || *ttl > MaxTTLSeconds {
			return outside("ttl", strconv.FormatUint(*ttl, 10), 1, MaxTTLSeconds)
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
	item, err := parsePublishItem(raw)
	if err != nil {
		return nil, unreadable(err)
	}
	return item, nil
}

// parsePublishItem reads one message of a publish in CBOR: a map with the members of
// PublishItem, except that data is any CBOR item, and bytes, a byte string, replaces
// base64. The result shares no memory with item.
func parsePublishItem(item []byte) (*wire.PublishItem, error) {
	object, kept, err := cbor.MapToJSON(item, "data", "bytes", "base64")
	if err != nil {
		return nil, err
	}
	if kept["base64"] != nil {
		return nil, errors.New(`unknown field "base64": in CBOR it is bytes`)
	}
	p := &wire.PublishItem{CBOR: bytes.Clone(kept["data"])}
	members := json.NewDecoder(bytes.NewReader(object))
	members.DisallowUnknownFields()
	if err := members.Decode(p); err != nil {
		return nil, err
	}
	if p.Data != nil || p.Base64 != nil {
		return nil, errors.New("data is written in another case") // encoding/json ignores case
	}
	if b := kept["bytes"]; b != nil {
		p.Base64, err = byteString(b)
	}
	return p, err
}

// byteString returns a copy of the byte string that item is.
func byteString(item []byte) (*[]byte, error) {
	r := cbor.NewReader(item)
	h, err := r.Head()
	if err == nil && h.Major != cbor.Bytes {
		err = errors.New("bytes is not a byte string")
	}
	if err != nil {
		return nil, err
	}
	s, err := r.Bytes(h)
	s = append([]byte{}, s...)
	return &s, err
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
