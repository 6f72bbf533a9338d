package frame

import (
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Format is how frames are written, one after the other.
type Format uint8

// The formats. Every frame of an answer, or of a connection, is in the same one.
const (
	NDJSON      Format = iota // application/x-ndjson: one JSON value a line
	CBOR                      // application/cbor-seq (RFC 8742): one item each
	EventStream               // text/event-stream: events for any EventSource

	// One WebSocket message a frame (RFC 6455), as a server sends it: with its head,
	// unmasked. Text holds a line of NDJSON, binary a CBOR item.
	SocketText
	SocketBinary
)

// ContentType returns the media type of an answer in this format.
func (f Format) ContentType() string {
	switch f {
	case EventStream:
		return "text/event-stream"
	case CBOR:
		return wire.CBORSequenceType
	}
	return wire.NDJSONType
}

// OnSocket returns how a WebSocket has what an answer has in this format.
func (f Format) OnSocket() Format {
	if f == CBOR {
		return SocketBinary
	}
	return SocketText
}

// OffSocket returns how an answer has what a WebSocket has in this format.
func (f Format) OffSocket() Format {
	switch f {
	case SocketText:
		return NDJSON
	case SocketBinary:
		return CBOR
	}
	return f
}

// IsBinary reports whether frames are CBOR, and so what their receiver says.
func (f Format) IsBinary() bool { return f == CBOR || f == SocketBinary }

// AppendHello appends h as a frame.
func (f Format) AppendHello(dst []byte, h *wire.Hello) []byte {
	if f.IsBinary() {
		return f.framed(dst, "", wire.Content{Hello: h}.AppendCBOR(nil))
	}
	return f.framed(dst, "hello", wire.Content{Hello: h}.AppendJSON(nil))
}

// AppendEnd appends the frame that says why there are no more.
func (f Format) AppendEnd(dst []byte, p *wire.Problem) []byte {
	if f.IsBinary() {
		return f.framed(dst, "", wire.Content{End: p}.AppendCBOR(nil))
	}
	return f.framed(dst, "end", wire.Content{End: p}.AppendJSON(nil))
}

// AppendReply appends r as a frame.
func (f Format) AppendReply(dst []byte, r *wire.Reply) []byte {
	if f.IsBinary() {
		return f.framed(dst, "", wire.Content{Reply: r}.AppendCBOR(nil))
	}
	return f.framed(dst, "reply", wire.Content{Reply: r}.AppendJSON(nil))
}

// framed appends a line of NDJSON, or a CBOR item, as this format has it.
func (f Format) framed(dst []byte, event string, b []byte) []byte {
	switch f {
	case EventStream:
		return Event{}.append(dst, event, b)
	case SocketText:
		dst = appendSocketHead(dst, opText, len(b))
	case SocketBinary:
		dst = appendSocketHead(dst, opBinary, len(b))
	}
	return append(dst, b...)
}

// Heartbeat returns what says nothing but that the connection lives. The caller must
// not change it.
func (f Format) Heartbeat() []byte { return heartbeats[f] }

var heartbeats = [...][]byte{
	NDJSON:       wire.Content{}.AppendJSON(nil),
	CBOR:         wire.Content{}.AppendCBOR(nil),
	EventStream:  []byte(":\n\n"),
	SocketText:   ping,
	SocketBinary: ping,
}

// A form is what a frame's bytes are kept as: a format, bare, as a chunk or deflated.
type form struct {
	format   Format
	chunk    bool
	deflated bool
}

// encode makes the bytes of f in this form.
func (o form) encode(f *Frame) []byte {
	switch {
	case o.chunk:
		b := f.Bytes(o.format)
		return AppendChunk(make([]byte, 0, len(b)+8), b)
	case o.deflated && o.format == o.format.OffSocket():
		return deflated(f.Bytes(o.format))
	case o.deflated:
		return o.encodeDeflated(f)
	}
	switch o.format {
	case EventStream:
		return encodeEvent(f)
	case SocketText, SocketBinary:
		return o.format.framed(nil, "", f.Bytes(o.format.OffSocket()))
	case CBOR:
		return encodeCBOR(f)
	}
	return encodeJSON(f)
}

// encodeDeflated makes a WebSocket message of the block that is shared with answers.
func (o form) encodeDeflated(f *Frame) []byte {
	block := f.in(form{format: o.format.OffSocket(), deflated: true})
	block = block[:len(block)-len(syncTail)]
	opcode := byte(opText)
	if o.format.IsBinary() {
		opcode = opBinary
	}
	return append(appendSocketHead(nil, compressed|opcode, len(block)), block...)
}

// sizeHint is enough for the usual message in one allocation.
func sizeHint(m *wire.Message) int {
	const members = 96 // names, punctuation, time, offset
	n := members + len(m.Position.Topic) + len(m.Position.Epoch) + len(m.ID) + len(m.Key) + len(m.Type) + len(m.Data)
	if m.Type != "" || m.CBOR {
		n += len(m.Data) / 2 // base64, escapes, or digits
	}
	return n
}

func encodeJSON(f *Frame) []byte {
	if f.gap != nil {
		return wire.Content{Gap: f.gap}.AppendJSON(nil)
	}
	return wire.Content{Message: f.message}.AppendJSON(make([]byte, 0, sizeHint(f.message)))
}

func encodeCBOR(f *Frame) []byte {
	if f.gap != nil {
		return wire.Content{Gap: f.gap}.AppendCBOR(nil)
	}
	return wire.Content{Message: f.message}.AppendCBOR(make([]byte, 0, sizeHint(f.message)))
}

// AppendChunk appends data as one chunk (RFC 9112, section 7.1). It must not be
// empty: an empty chunk is the end.
func AppendChunk(dst, data []byte) []byte {
	dst = strconv.AppendInt(dst, int64(len(data)), 16)
	dst = append(dst, "\r\n"...)
	dst = append(dst, data...)
	return append(dst, "\r\n"...)
}

// AppendPublished appends p as one JSON line.
func AppendPublished(dst []byte, p wire.Published) []byte {
	dst = append(dst, `{"position":"`...)
	dst = p.Position.Append(dst)
	dst = append(dst, `","time":`...)
	dst = strconv.AppendInt(dst, p.Time, 10)
	return append(dst, "}\n"...)
}
