package request

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A Message is a message to publish, with the other parameters of the request. SetPayload
// adds the payload.
type Message struct {
	wire.Message
	TTL     time.Duration
	isJSON  bool
	Session string // of the publisher; empty: not stated
}

// A Head is what a publish over HTTP states beside its body.
type Head struct {
	Topic, Query                string // the query is raw; many messages name their topics
	ContentType, IdempotencyKey Header
}

// A Header is the first value of a header, and the number of values. A slice would be an
// allocation for each publish on the lane.
type Header struct {
	Value string
	Count int
}

// HeaderOf returns a header with values, as net/http has them.
func HeaderOf(values []string) Header {
	if len(values) == 0 {
		return Header{}
	}
	return Header{values[0], len(values)}
}

// MessageOf returns the message of a publish without its payload; see PROTOCOL.md, Publishing.
func MessageOf(h Head) (m *Message, err error) {
	m = &Message{Message: wire.Message{Position: wire.Position{Topic: h.Topic}}}
	// Fast path: most messages.
	if m.isJSON = h.ContentType == (Header{"application/json", 1}); !m.isJSON {
		if m.Type, m.isJSON, err = mediaTypeOf(h.ContentType); err != nil {
			return nil, err
		}
	}
	switch given := h.IdempotencyKey; given.Count {
	case 0:
	case 1:
		if m.ID, err = parseIdempotencyKey(given.Value); err != nil {
			return nil, badID(err)
		}
	default:
		return nil, problem.New(wire.CodeInvalidRequest, "send one", "a request must have at most one Idempotency-Key header; got %d", given.Count)
	}
	if h.Query == "" {
		return m, nil
	}
	return m, m.readQuery(h.Query)
}

func (m *Message) readQuery(raw string) error {
	q := parseQuery(raw)
	for name := range q.values {
		if !slices.Contains(publishParameters, name) {
			q.fail(problem.New(wire.CodeInvalidRequest, "use only "+strings.Join(publishParameters, ", "), "a publish takes no parameter %s", wire.Quote(name)))
		}
	}
	m.TTL = time.Duration(q.number("ttl", 1, MaxTTLSeconds, 0)) * time.Second
	m.Session = q.one("session")
	m.Key = strings.Clone(q.oneOrEmpty("key")) // a substring would keep the whole request line
	q.fail(checkKey(m.Key))
	if m.Client = strings.Clone(q.one("client")); m.Client != "" {
		q.fail(checkClient(m.Client))
	}
	return q.err
}

var publishParameters = []string{"ttl", "key", "client", "session"}

// MaxTTLSeconds is a year: longer than any history.
const MaxTTLSeconds = 365 * 24 * 3600

// SetPayload makes body, which the message keeps, the payload: if it is valid for its type, and
// has at most so many bytes.
func (m *Message) SetPayload(body []byte, most int) (err error) {
	if len(body) > most {
		return TooLarge(most)
	}
	switch {
	case m.isJSON:
		if m.Data, err = wire.CompactJSON(body); err != nil {
			return problemOf(err, wire.CodeInvalidBody, "send one JSON value, or name another Content-Type")
		}
	case m.Type == wire.CBORType:
		return problemOf(m.setCBOR(body), wire.CodeInvalidBody, "send one CBOR item, or name another Content-Type")
	default:
		m.Data = body
	}
	return nil
}

// setCBOR makes body, a CBOR item, the payload: as JSON if JSON can express it, otherwise
// with wire.CBORType. The message keeps body. It stays unchanged if body is not a valid
// item (see cbor.Check), or wraps JSON that CompactJSON refuses.
func (m *Message) setCBOR(body []byte) error {
	model, err := cbor.Check(body)
	if err != nil {
		return err
	}
	if model == cbor.HasJSON {
		text, _ := cbor.EmbeddedJSON(body)
		if body, err = wire.CompactJSON(text); err != nil {
			return err
		}
	}
	m.Data, m.Type, m.CBOR = body, "", model == cbor.IsJSON
	if model == cbor.Only {
		m.Type = wire.CBORType
	}
	return nil
}

// Become replaces m by item, which must follow the rules of a publish. Topic, client and id
// stay. After an error, m is unchanged.
func (m *Message) Become(item *wire.PublishItem, most int) error {
	other, err := MessageOfItem(item, most)
	if err != nil {
		return err
	}
	other.Position, other.Client, other.ID = m.Position, m.Client, m.ID
	*m = *other
	return nil
}

func checkKey(key string) error {
	if len(key) > wire.MaxKeyBytes || !utf8.ValidString(key) {
		return problem.New(wire.CodeInvalidRequest, "use a shorter key, in UTF-8", "key must be UTF-8 of at most %d bytes", wire.MaxKeyBytes)
	}
	return nil
}

func checkClient(client string) error {
	return problemOf(wire.CheckClient(client), wire.CodeInvalidRequest, "use another client id, such as a UUID, or omit client")
}

// badID returns the problem for an error of an idempotency key.
func badID(err error) error {
	return problemOf(err, wire.CodeInvalidRequest, "use a new key for each message, such as a UUID, and the same key for each retry")
}

// mediaTypeOf returns the type of the message: empty for JSON. setCBOR may make JSON of
// CBOR.
func mediaTypeOf(given Header) (mediaType string, isJSON bool, err error) {
	switch {
	case given.Count > 1:
		return "", false, problem.New(wire.CodeUnsupportedType, "send one", "a request must have at most one Content-Type header; got %d", given.Count)
	case given.Count == 0 || strings.TrimSpace(given.Value) == "":
		return "application/octet-stream", false, nil // RFC 9110, section 8.3
	}
	mediaType = strings.TrimSpace(given.Value)
	base, params, err := wire.ParseType(mediaType)
	if err != nil {
		return "", false, problem.New(wire.CodeUnsupportedType, "send a media type such as text/plain", "Content-Type %v", err)
	}
	switch base {
	case "application/x-www-form-urlencoded":
		return "", false, problem.New(wire.CodeUnsupportedType,
			"set Content-Type: with curl, use --json '…', or -H 'Content-Type: text/plain' -d …", "Content-Type application/x-www-form-urlencoded is probably a mistake")
	case "application/json":
		if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
			return "", false, problem.New(wire.CodeUnsupportedType, "send UTF-8", "JSON must be in UTF-8, not %s (RFC 8259, section 8.1)", wire.Quote(cs))
		}
		return "", true, nil
	case wire.CBORType:
		return wire.CBORType, false, nil
	}
	return strings.Clone(mediaType), false, nil
}

// MessageOfItem returns the message of one of many, or of a command.
func MessageOfItem(item *wire.PublishItem, most int) (m *Message, err error) {
	m = &Message{Message: wire.Message{Position: wire.Position{Topic: item.Topic}, Key: item.Key}}
	var body []byte
	switch value, text, binary := item.Data != nil || item.CBOR != nil, item.Text != nil, item.Base64 != nil; {
	case value == (text || binary) || text && binary || value == (item.Type != ""):
		return nil, problem.New(wire.CodeInvalidRequest, "send data, or type with text, or type with base64 (in CBOR, bytes)", "a message must have exactly one payload")
	case item.CBOR != nil:
		m.Type, body = wire.CBORType, item.CBOR
	case value:
		m.isJSON, body = true, item.Data
	case text:
		body = []byte(*item.Text)
	default:
		body = *item.Base64
	}
	if item.Type != "" {
		if m.Type, m.isJSON, err = mediaTypeOf(Header{item.Type, 1}); err != nil {
			return nil, err
		}
	}
	if ttl := item.TTL; ttl != nil {
		if *ttl < 1 || *ttl > MaxTTLSeconds {
			return nil, outside("ttl", strconv.FormatUint(*ttl, 10), 1, MaxTTLSeconds)
		}
		m.TTL = time.Duration(*ttl) * time.Second
	}
	if item.Client != nil {
		if err := checkClient(*item.Client); err != nil {
			return nil, err
		}
		m.Client = *item.Client
	}
	if item.ID != nil {
		if err := wire.CheckID(*item.ID); err != nil {
			return nil, badID(err)
		}
		m.ID = *item.ID
	}
	if err := checkKey(m.Key); err != nil {
		return nil, err
	}
	return m, m.SetPayload(body, most)
}

func readItem(raw []byte) (*wire.PublishItem, error) {
	if !bytes.HasPrefix(raw, []byte("{")) {
		return nil, problem.New(wire.CodeInvalidRequest, `send an object such as {"topic":"a","data":1}`, "the message is not an object")
	}
	if !utf8.Valid(raw) { // encoding/json would replace invalid bytes
		return nil, problem.New(wire.CodeInvalidBody, "send UTF-8; encode other bytes in base64", "the message is not valid UTF-8")
	}
	item := &wire.PublishItem{}
	return item, decode(raw, item)
}

// readCBORItem reads one message of a publish in CBOR: a map with the members of
// PublishItem, except that data is any CBOR item, and bytes, a byte string, replaces
// base64. The result shares no memory with raw.
func readCBORItem(raw []byte) (*wire.PublishItem, error) {
	object, kept, err := cbor.MapToJSON(raw, "data", "bytes", "base64")
	switch {
	case err != nil:
		return nil, unreadable(err)
	case kept["base64"] != nil:
		return nil, unreadable(errors.New(`unknown field "base64": in CBOR, send bytes`))
	}
	item := &wire.PublishItem{CBOR: bytes.Clone(kept["data"])}
	if err := decode(object, item); err != nil {
		return nil, err
	}
	if kept["bytes"] == nil {
		return item, nil
	}
	r := cbor.NewReader(kept["bytes"])
	head, err := r.Head()
	if err != nil || head.Major != cbor.Bytes {
		return nil, unreadable(errors.New("bytes must be a byte string"))
	}
	content, err := r.StringBody(head)
	if err != nil {
		return nil, unreadable(err)
	}
	content = append([]byte{}, content...)
	item.Base64 = &content
	return item, nil
}
