package lane

import (
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/frame"
)

// heads are the heads of answers with the Date of one second. All answers of that second
// share them. They are byte for byte what net/http writes for the same answer: fields
// sorted by name, then those that net/http adds.
type heads struct {
	second int64  // Unix time
	of     []head // by the index of the request's origin; see cors.Policy
}

// A head has the heads of answers to requests with one index of their origin.
type head struct {
	before, after string // the fields before and after those of the body

	frames    [formats]*frame.Head // 200 to a poll; allocated one by one, since frames refer to them
	gzipped   [formats]*frame.Head // the same for a body in gzip
	published frame.Head           // 200 to a publish
	streams   [formats][]byte      // 200 with a body of unknown length, complete
}

// formats is the number of formats of answers. Their values come first.
const formats = frame.EventStream + 1

const (
	statusOK      = "HTTP/1.1 200 OK\r\n"
	contentLength = "Content-Length: "
	contentType   = "Content-Type: "
)

// makeHeads makes the heads of now's second.
func makeHeads(now time.Time, origins *cors.Policy) *heads {
	h := &heads{second: now.Unix(), of: make([]head, origins.Indices())}
	after := "X-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\nDate: " + now.UTC().Format(http.TimeFormat) + "\r\n"
	if origins.Varies() {
		after = "Vary: Origin\r\n" + after
	}
	for i := range h.of {
		before := "Cache-Control: no-store, no-transform\r\n"
		if allowed := origins.Allowed(i); allowed != "" {
			before = "Access-Control-Allow-Origin: " + allowed + "\r\nAccess-Control-Expose-Headers: " + cors.Expose + "\r\n" + before
		}
		beforeLength, beforeGzip := []byte(statusOK+before+contentLength), []byte(statusOK+before+"Content-Encoding: gzip\r\n"+contentLength)
		of := &h.of[i]
		of.before, of.after = before, after
		of.published = frame.Head{
			BeforeLength: beforeLength, AfterLength: []byte("\r\n" + contentType + "application/json\r\n" + after + "\r\n"), Second: h.second,
		}
		for format := range formats {
			ofFrames := contentType + format.ContentType() + "\r\n"
			afterLength := []byte("\r\n" + ofFrames + after + "\r\n")
			of.frames[format] = &frame.Head{Format: format, BeforeLength: beforeLength, AfterLength: afterLength, Second: h.second}
			of.gzipped[format] = &frame.Head{Format: format, Gzip: true, BeforeLength: beforeGzip, AfterLength: afterLength, Second: h.second}
			of.streams[format] = []byte(statusOK + before + ofFrames + after + "Transfer-Encoding: chunked\r\n\r\n")
		}
	}
	return h
}
