package wire

import (
	"fmt"
	"mime"
	"strings"
	"unicode/utf8"
)

// A Message is a published message with its position. It is immutable once published.
type Message struct {
	Position Position
	Time     int64  // when the daemon accepted it, in Unix milliseconds
	Type     string // media type of Data; empty for JSON
	Data     []byte // for JSON, one compact value, or see CBOR; otherwise the published bytes
	CBOR     bool   // the value is JSON, and Data is the CBOR that was published: see cbor.Check
	ID       string // the publisher's Idempotency-Key; may be empty
	Key      string // messages with the same key conflate; may be empty
	Client   string // the publisher's id, for subscribers with echo=false; may be empty; not in frames
	By       string // the verified subject of the publisher; empty: anonymous, or the topic's rule has no identity
	Claims   []byte // public claims of By: one compact JSON object; nil: none
}

// Bounds of a message's type, key, subject and public claims.
const (
	MaxTypeBytes   = 255
	MaxKeyBytes    = 255
	MaxByBytes     = 255
	MaxClaimsBytes = 256
)

// messageOverhead is what a held message costs besides its own bytes: its frame, the slice
// of its encoding and its slot in a history. It bounds a history of empty messages.
const messageOverhead = 256

// Size returns the bytes that a held message counts for.
func (m *Message) Size() int {
	return messageOverhead + len(m.Data) + len(m.Type) + len(m.ID) + len(m.Key) + len(m.Client) + len(m.By) + len(m.Claims)
}

// IsText reports whether frames carry Data as a string and not in base64: it is valid UTF-8, and
// its type is text/*, has the suffix +json or +xml (RFC 6839), or is one of two application types.
func (m *Message) IsText() bool {
	t, params, err := mime.ParseMediaType(m.Type)
	if err != nil || !utf8.Valid(m.Data) {
		return false
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") && !strings.EqualFold(cs, "us-ascii") {
		return false
	}
	return strings.HasPrefix(t, "text/") || strings.HasSuffix(t, "+json") || strings.HasSuffix(t, "+xml") ||
		t == "application/xml" || t == "application/javascript"
}

// ParseType is mime.ParseMediaType for the type of a message. It refuses what that also reads: a
// disposition, which has no slash, and a range such as text/*.
func ParseType(mediaType string) (base string, params map[string]string, err error) {
	base, params, err = mime.ParseMediaType(mediaType)
	if err != nil || !strings.Contains(base, "/") || strings.Contains(base, "*") || len(mediaType) > MaxTypeBytes || !utf8.ValidString(mediaType) {
		return "", nil, fmt.Errorf("%s is not a valid media type", Quote(mediaType))
	}
	return base, params, nil
}

// CBORType is the media type of one CBOR item, and of a message that JSON cannot express.
const CBORType = "application/cbor"
