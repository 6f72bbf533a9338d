package client

import "github.com/pubsubd/pubsubd/pkg/wire"

// Transport is over what clients of pubsubd get their messages; see PROTOCOL.md.
type Transport string

// The transports. Those that are polled are answered as the Mode says: LongPoll in
// any but Stream, Streaming in Stream alone.
const (
	LongPoll  Transport = "longpoll"
	Streaming Transport = "stream"
	SSE       Transport = "sse"
	WebSocket Transport = "websocket"
)

// Transports returns every transport.
func Transports() []Transport { return []Transport{LongPoll, Streaming, SSE, WebSocket} }

// IsPushed reports whether the transport is not polled, and so has no mode.
func (t Transport) IsPushed() bool { return t == SSE || t == WebSocket }

// Format is how frames of pubsubd are written.
type Format string

// The formats. An event stream is JSON.
const (
	JSON Format = "json"
	CBOR Format = "cbor"
)

// Formats returns every format.
func Formats() []Format { return []Format{JSON, CBOR} }

// contentType is the media type of an answer in the format.
func (f Format) contentType() string {
	if f == CBOR {
		return wire.CBORSequenceType
	}
	return wire.NDJSONType
}

// query is what asks for the format; JSON needs not be asked for.
func (f Format) query() string {
	if f == CBOR {
		return "&format=cbor"
	}
	return ""
}
