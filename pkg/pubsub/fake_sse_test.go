package pubsub

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// serveEvents is the daemon's /v1/sse.
func (f *fake) serveEvents(w http.ResponseWriter, r *http.Request) {
	a, _ := f.stateless(w, r)
	if a == nil {
		return
	}
	a.format = fakeFormat{"text/event-stream", encodeEvent}
	w.Header().Set("Content-Type", a.format.contentType)
	a.serveStream()
}

// encodeEvent writes a frame as an event. The id is not one that the daemon would
// give if there are several topics, which is nothing to a client that names them.
func encodeEvent(c wire.Content) []byte {
	var b bytes.Buffer
	switch {
	case c.Hello != nil:
		b.WriteString("retry: 1000\nevent: hello\nid: ~1:0\n")
	case c.End != nil:
		fmt.Fprintf(&b, "event: end\nretry: %d\nid: ~1:1\n", c.End.RetryAfterMS)
	case c.Gap != nil:
		fmt.Fprintf(&b, "event: gap\nid: %s\n", c.Gap.Position)
	case c.Message != nil:
		fmt.Fprintf(&b, "id: %s\n", c.Message.Position)
	default:
		return []byte(":\n\n")
	}
	fmt.Fprintf(&b, "data: %s\n", line(c)) // whose newline ends the event
	return b.Bytes()
}
