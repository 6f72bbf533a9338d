package lane

import (
	"net/http"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// heads are the heads of answers with today's date to the second, made once a
// second and shared by all answers of that second. They are byte for byte what
// net/http writes for the same answer: fields in the order of their names, then
// those that net/http adds.
type heads struct {
	second int64 // unix
	age    int64 // of the lane, in seconds, by a clock that nobody sets
	of     []head
}

// A head is of all answers to requests whose origin has one index, see
// cors.Policy.
type head struct {
	begin, end string // of all of them: the fields before and after those of the body

	frames    [polled]*frame.Head // 200 to a poll, by format; by itself, since frames keep it for as long as they are held
	gzipped   [polled]*frame.Head // the same in gzip
	published frame.Head          // 200 to a publish
	streams   [polled][]byte      // 200 to an answer of unknown length, whole, by format
}

// polled is how many formats answers have, which come first of all.
const polled = frame.EventStream + 1

const (
	statusOK = "HTTP/1.1 200 OK\r\n"
	noStore  = "Cache-Control: no-store, no-transform\r\n"
	length   = "Content-Length: "
	typed    = "Content-Type: "
	gzipped  = "Content-Encoding: gzip\r\n"
	ofJSON   = typed + "application/json\r\n"
	fixed    = "X-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\n"
)

// makeHeads makes the heads of now's second, or takes them from last.
func makeHeads(now time.Time, age int64, origins *cors.Policy, last *heads) *heads {
	if last != nil && last.second == now.Unix() {
		return &heads{second: last.second, age: age, of: last.of}
	}
	h := &heads{second: now.Unix(), age: age, of: make([]head, origins.Indices())}
	end := fixed + "Date: " + now.UTC().Format(http.TimeFormat) + "\r\n"
	if origins.Varies() {
		end = "Vary: Origin\r\n" + end
	}
	for i := range h.of {
		begin := noStore
		if allowed := origins.Allowed(i); allowed != "" {
			begin = "Access-Control-Allow-Origin: " + allowed + "\r\nAccess-Control-Expose-Headers: " + cors.Expose + "\r\n" + begin
		}
		h.of[i] = makeHead(begin, end, h.second)
	}
	return h
}

func makeHead(begin, end string, second int64) head {
	before, beforeGzip := []byte(statusOK+begin+length), []byte(statusOK+begin+gzipped+length)
	h := head{
		begin:     begin,
		end:       end,
		published: frame.Head{BeforeLength: before, AfterLength: []byte("\r\n" + ofJSON + end + "\r\n"), Second: second},
	}
	for format := range polled {
		ofFrames := typed + format.ContentType() + "\r\n"
		after := []byte("\r\n" + ofFrames + end + "\r\n")
		h.frames[format] = &frame.Head{Format: format, BeforeLength: before, AfterLength: after, Second: second}
		h.gzipped[format] = &frame.Head{Format: format, Gzip: true, BeforeLength: beforeGzip, AfterLength: after, Second: second}
		h.streams[format] = []byte(statusOK + begin + ofFrames + end + "Transfer-Encoding: chunked\r\n\r\n")
	}
	return h
}

// appendProblem appends a whole answer that is a problem. closes says that the
// connection is closed after it.
func (h *head) appendProblem(dst []byte, p *wire.Problem, body []byte, closes bool) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(p.Status), 10)
	dst = append(dst, ' ')
	dst = append(dst, http.StatusText(p.Status)...)
	dst = append(dst, "\r\n"...)
	dst = append(dst, h.begin...)
	dst = append(dst, length...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\nContent-Type: "+wire.ProblemType+"\r\n"...)
	if after := p.RetryAfter(); after > 0 {
		dst = append(dst, "Retry-After: "...)
		dst = strconv.AppendInt(dst, after, 10)
		dst = append(dst, "\r\n"...)
	}
	dst = append(dst, h.end...)
	if closes {
		dst = append(dst, "Connection: close\r\n"...)
	}
	dst = append(dst, "\r\n"...)
	return append(dst, body...)
}
