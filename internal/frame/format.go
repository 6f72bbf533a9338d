package frame

import (
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Format is how frames are written, one after the other.
type Format uint8

// The formats. All frames of an answer or a connection have the same one.
const (
	NDJSON      Format = iota // application/x-ndjson: one JSON value a line
	CBOR                      // application/cbor-seq (RFC 8742): one item each
	EventStream               // text/event-stream: events for any EventSource

	// WebSocket messages of a server (RFC 6455), each with its head, unmasked. Text is a
	// line of NDJSON, binary a CBOR item.
	SocketText
	SocketBinary
)

// formats has what distinguishes the formats.
var formats = [...]struct {
	mediaType           string // of an answer
	isBinary            bool   // it is CBOR
	onSocket, offSocket Format // the same for a WebSocket, and for an answer
	opcode              byte   // of a WebSocket message; 0: for answers only
	heartbeat           []byte
	encode              func(wire.Content, []byte) []byte // appends a line of NDJSON or a CBOR item
}{
	NDJSON:       {wire.NDJSONType, false, SocketText, NDJSON, 0, wire.Content{}.AppendJSON(nil), wire.Content.AppendJSON},
	CBOR:         {wire.CBORSequenceType, true, SocketBinary, CBOR, 0, wire.Content{}.AppendCBOR(nil), wire.Content.AppendCBOR},
	EventStream:  {"text/event-stream", false, SocketText, EventStream, 0, []byte(":\n\n"), wire.Content.AppendJSON},
	SocketText:   {wire.NDJSONType, false, SocketText, NDJSON, opText, ping, wire.Content.AppendJSON},
	SocketBinary: {wire.CBORSequenceType, true, SocketBinary, CBOR, opBinary, ping, wire.Content.AppendCBOR},
}

// ContentType returns the media type of an answer in this format.
func (f Format) ContentType() string { return formats[f].mediaType }

// OnSocket returns the WebSocket format for the format of an answer.
func (f Format) OnSocket() Format { return formats[f].onSocket }

// OffSocket returns the format of an answer for a WebSocket format.
func (f Format) OffSocket() Format { return formats[f].offSocket }

// IsBinary reports whether both directions use CBOR.
func (f Format) IsBinary() bool { return formats[f].isBinary }

// Append appends the frame with content c. A message or a gap should be a Frame, which
// encodes it once.
func (f Format) Append(dst []byte, c wire.Content) []byte {
	b := formats[f].encode(c, nil)
	if f == EventStream {
		return Event{}.append(dst, c, b)
	}
	return append(f.appendSocketHead(dst, 0, len(b)), b...)
}

// Heartbeat returns the bytes that only show that the connection is alive. The caller must
// not change them.
func (f Format) Heartbeat() []byte { return formats[f].heartbeat }

// A form is one way to encode a frame: in a format as it is, as a chunk, deflated, or as a
// whole answer.
type form struct {
	format   Format
	chunk    bool
	deflated bool
	head     *Head // of the whole answer; nil: none
}

func (o form) encode(f *Frame) []byte {
	plain := formats[o.format].offSocket
	switch {
	case o.head != nil:
		size, body := len(f.Bytes(o.format)), []Part{{Bytes: f.Bytes(o.format)}}
		if o.head.Gzip {
			m := TakeGzipMember(o.format, 0, nil, []*Frame{f})
			defer m.Release()
			size, body = m.Size(), m.Parts()
		}
		const digits = 8
		b := o.head.Append(make([]byte, 0, len(o.head.BeforeLength)+digits+len(o.head.AfterLength)+size), size)
		for _, p := range body {
			b = append(b, p.Bytes...)
		}
		return b
	case o.chunk: // RFC 9112, section 7.1; no frame is empty, so none ends the body
		b := f.Bytes(o.format)
		chunk := append(strconv.AppendInt(make([]byte, 0, len(b)+8), int64(len(b)), 16), "\r\n"...)
		return append(append(chunk, b...), "\r\n"...)
	case o.deflated && o.format == plain:
		return deflated(f.Bytes(plain))
	case o.deflated: // answers and WebSocket messages share the block
		block := f.in(form{format: plain, deflated: true})
		block = block[:len(block)-len(syncTail)]
		return append(o.format.appendSocketHead(nil, compressed, len(block)), block...)
	case o.format == EventStream:
		return f.AppendEvent(make([]byte, 0, len(f.Bytes(NDJSON))+128), f.Position().Append(nil))
	case o.format != plain:
		b := f.Bytes(plain)
		return append(o.format.appendSocketHead(nil, 0, len(b)), b...)
	case f.other != nil:
		return formats[plain].encode(*f.other, nil)
	}
	// Enough for the usual message in one allocation.
	const fields = 96 // names, punctuation, time, offset
	m := f.message
	size := fields + len(m.Position.Topic) + len(m.Position.Epoch) + len(m.ID) + len(m.Key) + len(m.Type) + len(m.Data)
	if m.By != "" {
		size += len(`,"by":"","claims":`) + len(m.By) + len(m.Claims)
	}
	if m.Type != "" || m.CBOR {
		size += len(m.Data) / 2 // base64, escapes, or digits
	}
	return formats[plain].encode(wire.Content{Message: m}, make([]byte, 0, size))
}

// AppendPublished appends p as one JSON line.
func AppendPublished(dst []byte, p wire.Published) []byte {
	dst = append(dst, `{"position":"`...)
	dst = p.Position.Append(dst)
	dst = append(dst, `","time":`...)
	dst = strconv.AppendInt(dst, p.Time, 10)
	return append(dst, "}\n"...)
}

// A Head is what precedes the body of an HTTP answer whose length is known, with that
// length in the middle. It is immutable: another date, format or origin needs another Head.
type Head struct {
	Format                    Format // of the body
	Gzip                      bool   // the body is one gzip member, which must pay; see Frame.Deflated
	BeforeLength, AfterLength []byte

	Second int64 // of its date; several heads of one second are in use at the same time
}

// Append appends the head of an answer whose body has the given length.
func (h *Head) Append(dst []byte, length int) []byte {
	dst = append(dst, h.BeforeLength...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	return append(dst, h.AfterLength...)
}
