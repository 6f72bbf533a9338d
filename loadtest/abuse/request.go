package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answers bounds how long an attacker waits for one.
const answers = 5 * time.Second

// requestTo returns a request that has what a request must have.
func requestTo(method, path, contentType string, body []byte) []byte {
	b := []byte(method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n")
	if contentType != "" {
		b = append(b, "Content-Type: "+contentType+"\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n"...)
	}
	b = append(b, "\r\n"...)
	return append(b, body...)
}

func get(path string) []byte { return requestTo(http.MethodGet, path, "", nil) }

func publishTo(topic string, body []byte) []byte {
	return requestTo(http.MethodPost, "/v1/topics/"+topic+"/messages", "text/plain", body)
}

func sendJSON(method, path, body string) []byte {
	return requestTo(method, path, "application/json", []byte(body))
}

// quoted returns topics as the members of a JSON array.
func quoted(topics ...string) string {
	if len(topics) == 0 {
		return ""
	}
	return `"` + strings.Join(topics, `","`) + `"`
}

func openWith(topics ...string) []byte {
	return sendJSON(http.MethodPost, "/v1/sessions", `{"topics":[`+quoted(topics...)+`]}`)
}

// change is a PATCH of a session.
func change(session, add, remove string) []byte {
	return sendJSON(http.MethodPatch, "/v1/sessions/"+session, `{"add":[`+add+`],"remove":[`+remove+`]}`)
}

// request sends what next makes, over and over at the raid's pace, on a crowd of
// connections of which each waits for its answers. next is called by many, each with
// its number and how many requests it has made.
func (r *raid) request(ctx context.Context, next func(number, turn int) []byte) {
	each(r.crowd, func(number int) {
		var s *speaker
		for turn := 0; r.paced.next(ctx); turn++ {
			r.tally.operation()
			if s == nil {
				if s = r.speaker(ctx, number); s == nil {
					continue
				}
			}
			if !s.ask(ctx, next(number, turn)) {
				s.end()
				s = nil
			}
		}
	})
}

// A speaker is a line that reads answers.
type speaker struct {
	*line
	in *bufio.Reader
}

// speaker returns nil if there is no connection to be had.
func (r *raid) speaker(ctx context.Context, number int) *speaker {
	l, err := r.dial(ctx, number)
	if err != nil {
		r.missed(ctx)
		return nil
	}
	return &speaker{l, bufio.NewReaderSize(l, 4<<10)}
}

// ask sends requests, counts what comes of them, and reports whether the connection
// may be used again.
func (s *speaker) ask(ctx context.Context, requests []byte) bool {
	unsaid := s.begin(requests)
	for range max(s.raid.pipelined, 1) {
		if a, ok := s.hear(ctx, unsaid); !ok || a.closes {
			return false
		}
	}
	return true
}

// hear counts what comes of a request, and reports whether it was answered.
func (s *speaker) hear(ctx context.Context, unsaid error) (answer, bool) {
	a, err := s.answer(unsaid)
	switch {
	case err == nil:
		s.raid.tally.answered(a.status)
	case isOver(ctx):
	case isTimeout(err):
		s.raid.tally.unanswered()
	default:
		s.raid.tally.cut()
	}
	return a, err == nil
}

// An answer is what an attacker looks at.
type answer struct {
	status int
	closes bool   // the connection ends with it
	body   []byte // unless it closes
}

func (a answer) succeeds() bool { return a.status/100 == 2 }

// exchange returns the answer to a request.
func (s *speaker) exchange(request []byte) (answer, error) { return s.answer(s.begin(request)) }

// begin sends a request, as far as the server takes it.
func (s *speaker) begin(request []byte) (unsaid error) {
	if !s.raid.unhurried {
		_ = s.SetDeadline(time.Now().Add(answers))
	}
	return s.say(request)
}

// answer returns the answer to a request. A server that did not take all of a request
// may still answer it.
func (s *speaker) answer(unsaid error) (answer, error) {
	read, err := http.ReadResponse(s.in, nil)
	if err != nil {
		if unsaid != nil {
			err = unsaid
		}
		return answer{}, err
	}
	defer read.Body.Close()
	if read.Close || unsaid != nil {
		_ = s.SetReadDeadline(time.Now()) // the server may take its time to end it
		return answer{status: read.StatusCode, closes: true}, nil
	}
	body, err := io.ReadAll(read.Body)
	return answer{status: read.StatusCode, body: body}, err
}

// again is how long an attacker waits before it tries again what it needs.
const again = time.Second / 10

// begin makes a request that an attack needs before it can begin, over and over
// until it is taken, and reads the answer. It comes from the address of that number.
func (r *raid) begin(ctx context.Context, number int, request []byte, into any) error {
	for {
		err := r.beginOnce(ctx, number, request, into)
		if err == nil {
			return nil
		}
		if !rest(ctx, again) {
			return fmt.Errorf("could not begin: %w", err)
		}
	}
}

func (r *raid) beginOnce(ctx context.Context, number int, request []byte, into any) error {
	l, err := r.dial(ctx, number)
	if err != nil {
		return err
	}
	defer l.end()
	s := speaker{l, bufio.NewReader(l)}
	a, err := s.exchange(request)
	if err != nil {
		return err
	}
	if !a.succeeds() {
		return fmt.Errorf("refused: %d %.200q", a.status, a.body)
	}
	return json.Unmarshal(a.body, into)
}

// session opens one, and returns its id.
func (r *raid) session(ctx context.Context, topics ...string) (string, error) {
	var opened struct{ Session string }
	err := r.begin(ctx, 0, openWith(topics...), &opened)
	return opened.Session, err
}
