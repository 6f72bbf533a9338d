package wire

import (
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A Message is what was published, with the position the daemon gave it.
// It is immutable once published.
type Message struct {
	Position Position
	Time     int64  // Unix milliseconds at which the daemon took it
	Type     string // media type of Data; empty for JSON
	Data     []byte // for JSON one compact value, or see CBOR; else the published bytes
	CBOR     bool   // the value is JSON, and Data is CBOR, as it was published: see cbor.Check
	ID       string // the publisher's Idempotency-Key; may be empty
	Key      string // what conflation goes by; may be empty
	Client   string // the publisher's own id, for those who leave their own out; may be empty; not in frames
}

// MaxTypeBytes and MaxKeyBytes bound what a publisher says about a message.
const (
	MaxTypeBytes = 255
	MaxKeyBytes  = 255
)

// messageOverhead is what a held message costs beside its own bytes: the Frame,
// its encoding's slice and its slot in the history. Counting it keeps a
// history of empty messages within its bound, too.
const messageOverhead = 256

// Size returns the bytes that a held message counts for.
func (m *Message) Size() int {
	return messageOverhead + len(m.Data) + len(m.Type) + len(m.ID) + len(m.Key) + len(m.Client)
}

// IsText reports whether Data travels as a JSON string rather than in base64: it
// is valid UTF-8 of a type that is text.
func (m *Message) IsText() bool { return isTextType(m.Type) && utf8.Valid(m.Data) }

// isTextType holds for text/*, for the +json and +xml suffixes (RFC 6839), and
// for the two application types that are text in all but name, unless a
// charset other than UTF-8 is stated.
func isTextType(mediaType string) bool {
	t, params, err := mime.ParseMediaType(mediaType)
	if err != nil {
		return false
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") && !strings.EqualFold(cs, "us-ascii") {
		return false
	}
	return strings.HasPrefix(t, "text/") || strings.HasSuffix(t, "+json") || strings.HasSuffix(t, "+xml") ||
		t == "application/xml" || t == "application/javascript"
}

// CBORType is the media type of one CBOR item, and of a message that JSON has no
// words for.
const CBORType = "application/cbor"

// SetCBOR makes body, which is published as CBOR, the message's payload: JSON, if
// JSON has words for it, and otherwise CBORType. The message keeps body, and nothing
// of it is set if the error says that this is no such item (see cbor.Check), or wraps
// what CompactJSON refuses.
func (m *Message) SetCBOR(body []byte) error {
	model, err := cbor.Check(body)
	if err != nil {
		return err
	}
	if model == cbor.HasJSON {
		text, _ := cbor.EmbeddedJSON(body)
		if body, err = CompactJSON(text); err != nil {
			return err
		}
	}
	m.Data, m.Type, m.CBOR = body, "", model == cbor.IsJSON
	if model == cbor.Only {
		m.Type = CBORType
	}
	return nil
}
