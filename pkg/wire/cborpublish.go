package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// CBORType is the media type of one CBOR item, and of a message that JSON has no
// words for.
const CBORType = "application/cbor"

// SetCBOR makes body, which is published as CBOR, the message's payload: JSON, if
// JSON has words for it, and otherwise CBORType. The message keeps body, and nothing
// of it is set if the error says that this is no such item (see CheckCBOR), or wraps
// what CompactJSON refuses.
func (m *Message) SetCBOR(body []byte) error {
	model, err := CheckCBOR(body)
	if err != nil {
		return err
	}
	if model == CBORHasJSON {
		text, _ := EmbeddedJSON(body)
		if body, err = CompactJSON(text); err != nil {
			return err
		}
	}
	m.Data, m.Type, m.CBOR = body, "", model == CBORIsJSON
	if model == CBOROnly {
		m.Type = CBORType
	}
	return nil
}

// CutCBOR returns the first item of a CBOR sequence, which is not checked further,
// and what stands behind it. If the item is cut off, the error is
// io.ErrUnexpectedEOF.
func CutCBOR(sequence []byte) (item, rest []byte, err error) {
	var s ItemScan
	whole, err := s.Next(sequence)
	if err == nil && !whole {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, sequence, err
	}
	return sequence[:s.at:s.at], sequence[s.at:], nil
}

// CBORMapToJSON returns a CBOR map, one whole item with text keys, as a JSON object,
// but for the members that are kept in CBOR: those are returned as they are, and not
// checked.
func CBORMapToJSON(item []byte, kept ...string) (object []byte, members map[string][]byte, err error) {
	r := &cborReader{b: item}
	h, err := r.head()
	if err == nil && h.major != cborMap {
		err = errors.New("it is not a map")
	}
	if err != nil {
		return nil, nil, err
	}
	var keys mapKeys
	members = make(map[string][]byte)
	object = []byte{'{'}
	for n := uint64(0); r.more(h, n); n++ {
		key, value, err := r.member()
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, key)
		if name := string(key); slices.Contains(kept, name) {
			members[name] = value
			continue
		}
		if object, err = appendMember(object, key, value); err != nil {
			return nil, nil, fmt.Errorf("%.40q: %w", key, err)
		}
	}
	if !keys.shut(0) {
		return nil, nil, errCBORDuplicate
	}
	return append(object, '}'), members, nil
}

// member reads a text key, and finds its value.
func (r *cborReader) member() (key, value []byte, err error) {
	h, err := r.head()
	if err == nil && h.major != cborText {
		err = errors.New("a key is not text")
	}
	if err != nil {
		return nil, nil, err
	}
	if key, err = r.text(h); err != nil {
		return nil, nil, err
	}
	value, rest, err := CutCBOR(r.b[r.at:])
	r.at = len(r.b) - len(rest)
	return key, value, err
}

func appendMember(object, key, value []byte) ([]byte, error) {
	if len(object) > 1 {
		object = append(object, ',')
	}
	object = append(appendString(object, key), ':')
	r := cborReader{b: value}
	return r.appendJSON(object, 1)
}

// ParsePublishItem reads one message of a publish in CBOR: the map that PublishItem is,
// whose data is any CBOR item, and which has bytes, a byte string, in place of
// base64. It takes no memory of item's but CBOR.
func ParsePublishItem(item []byte) (*PublishItem, error) {
	object, kept, err := CBORMapToJSON(item, "data", "bytes", "base64")
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
	r := cborReader{b: item}
	h, err := r.head()
	if err == nil && h.major != cborBytes {
		err = errors.New("bytes is not a byte string")
	}
	if err != nil {
		return nil, err
	}
	s, err := r.bytes(h)
	s = append([]byte{}, s...)
	return &s, err
}

// AppendPublishResult appends the result of one of many messages as a CBOR map, with
// its members in JSON.
func AppendPublishResult(dst []byte, r PublishResult) []byte {
	return appendValueCBOR(dst, "result", r)
}
