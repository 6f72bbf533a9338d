package encoding

import (
	"encoding/json"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The encodings, by the names that the report has.
const (
	JSON     = "JSON"
	GzipJSON = "gzip JSON"
	CBOR     = "CBOR"
	GzipCBOR = "gzip CBOR" // of the size table alone
)

// A codec is how a client encodes what it publishes, and decodes what it polls.
// Immutable.
type codec struct {
	name        string
	contentType string
	query       string // that asks polls for it
	gzip        bool   // answers come compressed

	encode func(v any) ([]byte, error)
	// frames reads all frames of an answer, in order.
	frames func(body []byte, each func(frame) error) error
}

// codecs returns those that go the whole way, text first: others are compared
// with it.
func codecs() []codec {
	return []codec{
		{name: JSON, contentType: "application/json", encode: json.Marshal, frames: jsonFrames},
		{name: GzipJSON, contentType: "application/json", gzip: true, encode: json.Marshal, frames: jsonFrames},
		{name: CBOR, contentType: "application/cbor", query: "&format=cbor", encode: cborEncoding.Marshal, frames: cborFrames},
	}
}

// A frame is what matters of one: a message with its objects, or something else
// that is there instead. Heartbeats are none.
type frame struct {
	position wire.Position // of a message
	objects  []Object
	gap      bool
	opaque   string // the type of a message that the server passed on unread
	other    string // in words, if it is no message of ours
}
