package wire

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

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

// ParsePublishItem reads one message of a publish in CBOR: the map that PublishItem is,
// whose data is any CBOR item, and which has bytes, a byte string, in place of
// base64. It takes no memory of item's but CBOR.
func ParsePublishItem(item []byte) (*PublishItem, error) {
	object, kept, err := cbor.MapToJSON(item, "data", "bytes", "base64")
	if err != nil {
		return nil, err
	}
	if kept["base64"] != nil {
		return nil, errors.New(`unknown field "base64": in CBOR it is bytes`)
	}
	p := &PublishItem{CBOR: kept["data"]}
	members := json.NewDecoder(bytes.NewReader(object))
	members.DisallowUnknownFields()
	if err := members.Decode(p); err != nil {
		return nil, err
	}
	if p.Data != nil || p.Base64 != nil {
		return nil, errors.New("data is written in another case") // which encoding/json takes for the same
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
