package pubsub

import (
	"io"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A decoder reads frames. Next returns the next one's content, the zero Content for
// what says nothing, io.EOF at a clean end, and io.ErrUnexpectedEOF if a frame was
// cut off.
type decoder interface {
	Next() (wire.Content, error)
}

// An encoding is how the frames of an answer are written.
type encoding struct {
	contentType string
	decoder     func(io.Reader) decoder
}

var (
	ndjson = encoding{wire.NDJSON.ContentType(), func(r io.Reader) decoder { return wire.NewDecoder(r) }}
	events = encoding{"text/event-stream", func(r io.Reader) decoder { return newEventDecoder(r) }}
)
