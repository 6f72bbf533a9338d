package encoding

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// cborEncoding writes dates as JSON does; all else is the library's default.
var cborEncoding = must(cbor.EncOptions{Time: cbor.TimeRFC3339}.EncMode())

// cborDecoding takes what is nested as deeply as the daemon takes it.
var cborDecoding = must(cbor.DecOptions{MaxNestedLevels: 64 + 4, UTF8: cbor.UTF8RejectInvalid}.DecMode())

func must[T any](mode T, err error) T {
	if err != nil {
		panic("BUG: an option of the CBOR library: " + err.Error())
	}
	return mode
}

// Parts of a CBOR frame, which is an array that begins with its kind. A message
// has nine elements.
const (
	cborHeartbeat    = 0xf6 // a heartbeat
	cborMessageBegin = "\x89\x00"
	kindMessage      = 0
	kindGap          = 1
	typeElement      = 5 // the element of a message that has its type
)

// A cborFrame is a message, read in one pass with the objects in it.
type cborFrame struct {
	_      struct{} `cbor:",toarray"`
	Kind   uint8
	Topic  string
	Epoch  string
	Offset uint64
	Time   int64
	Type   *string
	Data   []Object
	ID     *string
	Key    *string
}

func cborFrames(body []byte, each func(frame) error) error {
	for len(body) > 0 {
		if body[0] == cborHeartbeat {
			body = body[1:]
			continue
		}
		f, rest, err := cborFrameOf(body)
		if err == nil {
			err = each(f)
		}
		if err != nil {
			return err
		}
		body = rest
	}
	return nil
}

func cborFrameOf(body []byte) (f frame, rest []byte, err error) {
	if !bytes.HasPrefix(body, []byte(cborMessageBegin)) {
		return otherCBOR(body)
	}
	var m cborFrame
	if rest, err = cborDecoding.UnmarshalFirst(body, &m); err != nil {
		return otherMessage(body, err)
	}
	if m.Type != nil {
		return otherCBOR(body)
	}
	return frame{position: wire.Position{Topic: m.Topic, Epoch: m.Epoch, Offset: m.Offset}, objects: m.Data}, rest, nil
}

// otherMessage is a message whose payload has another type than ours, or err.
func otherMessage(body []byte, err error) (frame, []byte, error) {
	if _, ok := errors.AsType[*cbor.UnmarshalTypeError](err); !ok {
		return frame{}, nil, fmt.Errorf("frame %.60x: %w", body, err)
	}
	return otherCBOR(body)
}

func otherCBOR(body []byte) (frame, []byte, error) {
	var elements []cbor.RawMessage
	rest, err := cborDecoding.UnmarshalFirst(body, &elements)
	if err != nil {
		return frame{}, nil, fmt.Errorf("frame %.60x: %w", body, err)
	}
	text, err := cbor.Diagnose(body[:len(body)-len(rest)])
	if err != nil {
		return frame{}, nil, fmt.Errorf("frame %.60x: %w", body, err)
	}
	f := frame{other: fmt.Sprintf("%.200s", text)}
	switch {
	case isKind(elements, kindGap):
		f.gap = true
	case isKind(elements, kindMessage) && len(elements) > typeElement:
		_ = cborDecoding.Unmarshal(elements[typeElement], &f.opaque) // what is no text is no type
	}
	return f, rest, nil
}

func isKind(elements []cbor.RawMessage, kind byte) bool {
	return len(elements) > 0 && len(elements[0]) == 1 && elements[0][0] == kind
}
