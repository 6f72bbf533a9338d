package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// The attacks of this file ask for long answers and do not read them.

// unreadLists asks for pages of topics, about 870 bytes for each topic.
func unreadLists(ctx context.Context, r *raid) error {
	if err := r.fill(ctx, longList()); err != nil {
		return err
	}
	return r.leaveUnread(ctx, get(listPath))
}

// unreadLists2 asks for the same over HTTP/2, in streams whose window is 0.
func unreadLists2(ctx context.Context, r *raid) error {
	const streams = 100
	if err := r.fill(ctx, longList()); err != nil {
		return err
	}
	return r.leaveUnread(ctx, http2Gets(listPath, streams))
}

// unreadPolls asks for as many messages as an answer holds.
func unreadPolls(ctx context.Context, r *raid) error {
	if err := r.fill(ctx, longHistory()); err != nil {
		return err
	}
	return r.leaveUnread(ctx, get("/v1/poll?topic=abuse.unread@oldest"))
}

// unreadHistory asks for the same messages with a request that takes one of limits.calls.
func unreadHistory(ctx context.Context, r *raid) error {
	if err := r.fill(ctx, longHistory()); err != nil {
		return err
	}
	return r.leaveUnread(ctx, get("/v1/topics/abuse.unread/messages?limit=1000"))
}

// unreadSession2 asks for a session with long names over HTTP/2, in streams whose window is 0.
func unreadSession2(ctx context.Context, r *raid) error {
	const topics, streams = 100, 100
	id, err := r.session(ctx, longNames(topics)...)
	if err != nil {
		return err
	}
	return r.leaveUnread(ctx, http2Gets("/v1/sessions/"+id, streams))
}

// hugePositions sends positions that cannot be read, to be told so at length.
func hugePositions(ctx context.Context, r *raid) error {
	const digits = 900_000
	return r.leaveUnread(ctx, sendJSON(http.MethodPost, "/v1/poll", `{"topics":["abuse.quiet@k3:`+strings.Repeat("9", digits)+`"]}`))
}

// leaveUnread sends a request on each connection of the crowd, and reads nothing.
func (r *raid) leaveUnread(ctx context.Context, request []byte) error {
	r.stand(ctx, func(int) stance { return stance{say: request, silent: true} })
	return nil
}

// listPath is that of the longest list of topics.
const listPath = "/v1/topics?limit=1000"

// longNames are names of topics, as long as they may be.
func longNames(topics int) []string {
	const longest = 255
	names := make([]string, topics)
	for i := range names {
		name := fmt.Sprintf("abuse.list.%d.", i)
		names[i] = name + strings.Repeat("x", longest-len(name))
	}
	return names
}

// longList are publishes to topics with such names.
func longList() []string {
	const topics = 1000
	items := longNames(topics)
	for i, name := range items {
		items[i] = `{"topic":"` + name + `","data":1}`
	}
	return items
}

// longHistory are publishes to one topic.
func longHistory() []string {
	const messages, size = 1000, 230
	return slices.Repeat([]string{`{"topic":"abuse.unread","data":"` + string(filling(size)) + `"}`}, messages)
}

// fill publishes items, from as many addresses as it takes to stay within their rates.
func (r *raid) fill(ctx context.Context, items []string) error {
	const atOnce = 100 // see limits.yaml
	faults := make([]error, (len(items)+atOnce-1)/atOnce)
	var all sync.WaitGroup
	for part := range faults {
		some := items[part*atOnce : min((part+1)*atOnce, len(items))]
		request := sendJSON(http.MethodPost, "/v1/messages", "["+strings.Join(some, ",")+"]")
		all.Go(func() { faults[part] = r.begin(ctx, part, request, new(json.RawMessage)) })
	}
	all.Wait()
	return errors.Join(faults...)
}

// http2Gets opens a connection for HTTP/2 without TLS (RFC 9113), on which nothing may be
// sent in a stream, and asks for path in so many streams.
func http2Gets(path string, streams int) []byte {
	const (
		settings, headers     = 4, 1
		initialWindow         = 4
		endsStream, endsBlock = 1, 4
		methodGet, schemeHTTP = 0x82, 0x86 // of HPACK's static table (RFC 7541, appendix A)
		pathIs, authorityIs   = 0x04, 0x01
	)
	b := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frame := func(kind, flags byte, stream uint32, payload []byte) {
		b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
		b = append(binary.BigEndian.AppendUint32(b, stream), payload...)
	}
	text := func(name byte, value string) string { return string([]byte{name, byte(len(value))}) + value }
	frame(settings, 0, 0, binary.BigEndian.AppendUint32([]byte{0, initialWindow}, 0))
	head := []byte(string([]byte{methodGet, schemeHTTP}) + text(pathIs, path) + text(authorityIs, "127.0.0.1"))
	for i := range streams {
		frame(headers, endsStream|endsBlock, uint32(2*i+1), head)
	}
	return b
}
