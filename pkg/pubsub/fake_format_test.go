package pubsub

import (
	"net/http"

	"github.com/gobwas/ws"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A fakeFormat is how an answer's frames are written.
type fakeFormat struct {
	contentType string
	encode      func(wire.Content) []byte
}

func formatOf(r *http.Request) fakeFormat {
	if r.Header.Get("Accept") == "application/cbor-seq" {
		return fakeFormat{"application/cbor-seq", item}
	}
	return fakeFormat{"application/x-ndjson", line}
}

// item writes a frame in CBOR.
func item(c wire.Content) []byte { return c.AppendCBOR(nil) }

// webSocketFormat is that of a WebSocket, with its frames around those of f.
func webSocketFormat(f Format) fakeFormat {
	encode := map[Format]func(wire.Content) []byte{JSON: line, CBOR: item}[f]
	return fakeFormat{encode: func(c wire.Content) []byte {
		if c == (wire.Content{}) {
			return frame(ws.OpPing, true, "there?")
		}
		frames := frame(f.message(), true, string(encode(c)))
		if c.End != nil {
			frames = append(frames, frame(ws.OpClose, true, "\x03\xe9")...) // 1001, going away
		}
		return frames
	}}
}
