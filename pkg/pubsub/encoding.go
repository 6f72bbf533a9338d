package pubsub

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A Format is the encoding of frames. The delivered messages are the same in both: a JSON
// payload is JSON text in Message.Data.
type Format string

// The formats.
const (
	JSON Format = "json"
	CBOR Format = "cbor" // shorter: RFC 8949
)

// WithFormat sets the format. TCP has only CBOR, and SSE only JSON. Default: JSON, and CBOR
// with TCP.
func WithFormat(f Format) SubscribeOption {
	return func(o *subscribeOptions) { o.format = f }
}

// resolveFormat says what was left open, once the transport is known.
func (o *subscribeOptions) resolveFormat() error {
	otherwise := JSON
	if o.transport == TCP {
		otherwise = CBOR
	}
	switch {
	case o.format == "":
		o.format = otherwise
	case o.format != JSON && o.format != CBOR:
		return fmt.Errorf("unknown format %q", o.format)
	case o.format != otherwise && (o.transport == TCP || o.transport == SSE):
		return fmt.Errorf("the transport %q supports only the format %q", o.transport, otherwise)
	}
	return nil
}

// A decoder reads frames. Next returns the next one's content, the zero Content for
// what says nothing, io.EOF at a clean end, and io.ErrUnexpectedEOF if a frame was
// cut off.
type decoder interface {
	Next() (wire.Content, error)
}

// decoder returns a decoder of frames in the format.
func (f Format) decoder(r io.Reader) decoder {
	if f == CBOR {
		return wire.NewCBORDecoder(r)
	}
	return wire.NewDecoder(r)
}

// An encoding is how the frames of an answer are written.
type encoding struct {
	contentType string
	decoder     func(io.Reader) decoder
}

func (o *subscribeOptions) encoding() encoding {
	switch {
	case o.transport == SSE:
		return encoding{"text/event-stream", func(r io.Reader) decoder { return newEventDecoder(r) }}
	case o.format == CBOR:
		return encoding{"application/cbor-seq", o.format.decoder}
	}
	return encoding{"application/x-ndjson", o.format.decoder}
}

// encode writes what is sent to the daemon.
func (f Format) encode(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil || f == JSON {
		return text, err
	}
	return cbor.AppendFromJSON(nil, text), nil
}
