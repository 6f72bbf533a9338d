package wire

import "strconv"

// Format is how frames are written, one after the other.
type Format uint8

// The formats. Every frame of an answer, or of a connection, is in the same one.
const (
	NDJSON      Format = iota // application/x-ndjson: one JSON value a line
	EventStream               // text/event-stream: events for any EventSource

	// One WebSocket message a frame (RFC 6455), as a server sends it: with its head,
	// unmasked.
	SocketText
)

// ContentType returns the media type of an answer in this format.
func (f Format) ContentType() string {
	if f == EventStream {
		return "text/event-stream"
	}
	return "application/x-ndjson"
}

// AppendHello appends h as a frame.
func (f Format) AppendHello(dst []byte, h *Hello) []byte {
	return f.appendLine(dst, "hello", AppendHello(nil, h))
}

// AppendEnd appends the frame that says why there are no more.
func (f Format) AppendEnd(dst []byte, p *Problem) []byte {
	return f.appendLine(dst, "end", AppendEnd(nil, p))
}

// appendLine appends a frame whose NDJSON is line.
func (f Format) appendLine(dst []byte, event string, line []byte) []byte {
	switch f {
	case EventStream:
		return appendEvent(dst, event, "", line)
	case SocketText:
		return append(appendSocketHead(dst, opText, len(line)), line...)
	}
	return append(dst, line...)
}

// Heartbeat returns what says nothing but that the connection lives. The caller must
// not change it.
func (f Format) Heartbeat() []byte { return heartbeats[f] }

var heartbeats = [...][]byte{
	NDJSON:      Heartbeat,
	EventStream: []byte(":\n\n"),
	SocketText:  {finalFrame | opPing, 0},
}

// A form is what a frame's bytes are kept as: a format, bare or as a chunk.
type form struct {
	format Format
	chunk  bool
}

// encode makes the bytes of f in this form.
func (o form) encode(f *Frame) []byte {
	if o.chunk {
		b := f.Bytes(o.format)
		return AppendChunk(make([]byte, 0, len(b)+8), b)
	}
	switch o.format {
	case EventStream:
		return encodeEvent(f)
	case SocketText:
		line := f.Bytes(NDJSON)
		return append(appendSocketHead(make([]byte, 0, len(line)+maxSocketHead), opText, len(line)), line...)
	}
	if f.gap != nil {
		return AppendGap(nil, f.gap)
	}
	return AppendMessage(make([]byte, 0, jsonSizeHint(f.message)), f.message)
}

// AppendChunk appends data as one chunk (RFC 9112, section 7.1). It must not be
// empty: an empty chunk is the end.
func AppendChunk(dst, data []byte) []byte {
	dst = strconv.AppendInt(dst, int64(len(data)), 16)
	dst = append(dst, "\r\n"...)
	dst = append(dst, data...)
	return append(dst, "\r\n"...)
}
