package transports

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// perPublish is how many messages a request publishes: the most that it may.
const perPublish = 1000

// A publisher publishes the messages of a test to one topic, many with a request,
// the next when the last was answered. It belongs to one goroutine.
type publisher struct {
	*exchange
	authority, topic string
	messages         int

	requests [][]byte      // prepared
	last     wire.Position // that a message was given
}

// newPublisher connects and prepares. Whoever gets a publisher must close its
// connection.
func newPublisher(ctx context.Context, authority, topic string, messages int) (*publisher, error) {
	e, err := newExchange(ctx, authority)
	if err != nil {
		return nil, err
	}
	p := &publisher{exchange: e, authority: authority, topic: topic, messages: messages}
	for from := 0; from < messages; from += perPublish {
		p.requests = append(p.requests, p.request(from, min(from+perPublish, messages)))
	}
	return p, nil
}

// begin publishes a message that is none of the test's, so that the topic has a
// position to begin after.
func (p *publisher) begin(ctx context.Context) error {
	if err := p.publish(ctx, p.wrap([]byte(`{"topic":"`+p.topic+`","data":"first"}`+"\n"))); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// request publishes the messages from one sequence up to another.
func (p *publisher) request(from, to int) []byte {
	before, after := loadtest.ShortStrings()
	var b []byte
	for n := from; n < to; n++ {
		b = append(b, `{"topic":"`+p.topic+`","data":`+before...)
		b = appendPadded(b, uint64(n), loadtest.SequenceDigits)
		b = append(append(b, after...), "}\n"...)
	}
	return p.wrap(b)
}

func (p *publisher) wrap(body []byte) []byte {
	return post(p.authority, "/v1/messages", wire.NDJSONType, body)
}

// run publishes everything.
func (p *publisher) run(ctx context.Context) error {
	for _, r := range p.requests {
		if err := p.publish(ctx, r); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}

// publish sends a request until all of it is taken. The server holds a publisher
// back by refusing what comes too early, and says when to come again.
func (p *publisher) publish(ctx context.Context, request []byte) error {
	for {
		head, body, err := p.call(request)
		if err != nil {
			return err
		}
		if head.Status != http.StatusOK {
			return fmt.Errorf("answered %d: %.300q", head.Status, body)
		}
		rest, wait, err := p.read(body, request)
		if err != nil || len(rest) == 0 {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		request = p.wrap(rest)
	}
}

// read looks at a result for each message. It returns the lines of those that were
// refused for the time being, and how long to wait.
func (p *publisher) read(body, request []byte) (rest []byte, wait time.Duration, err error) {
	_, sent, _ := bytes.Cut(request, []byte("\r\n\r\n"))
	results, messages := bytes.SplitAfter(body, []byte("\n")), bytes.SplitAfter(sent, []byte("\n"))
	if len(results) != len(messages) {
		return nil, 0, fmt.Errorf("%d results for %d messages", len(results)-1, len(messages)-1)
	}
	for i, r := range results[:len(results)-1] {
		problem, err := p.result(r)
		if err != nil {
			return nil, 0, err
		}
		if problem != nil {
			rest = append(rest, messages[i]...)
			wait = max(wait, time.Duration(problem.RetryAfterMS)*time.Millisecond)
		}
	}
	return rest, wait, nil
}

// result reads one: of a message that was taken, the position; else the problem, if
// it is one that passes.
func (p *publisher) result(line []byte) (*wire.Problem, error) {
	if after, ok := bytes.CutPrefix(line, []byte(`{"position":"`)); ok {
		position, _, _ := bytes.Cut(after, []byte(`"`))
		at, err := wire.ParsePosition(string(position))
		p.last = at
		return nil, err
	}
	var refused struct{ Problem *wire.Problem }
	if err := json.Unmarshal(line, &refused); err != nil || refused.Problem == nil {
		return nil, fmt.Errorf("invalid result %.200q", line)
	}
	if refused.Problem.Code != wire.CodeOverloaded {
		return nil, refused.Problem
	}
	return refused.Problem, nil
}

// held returns an error if the topic does not hold all that was published.
func (p *publisher) held() error {
	_, body, err := p.call(client.Get(p.authority, "/v1/topics/"+p.topic))
	if err != nil {
		return fmt.Errorf("read the topic's state: %w", err)
	}
	var state wire.TopicState
	if err := json.Unmarshal(body, &state); err != nil {
		return fmt.Errorf("the topic's state %.200q: %w", body, err)
	}
	if state.Messages != p.messages {
		return fmt.Errorf("the server holds %d of %d messages: raise its --history-messages, --history-bytes, --history-age and --memory-budget", state.Messages, p.messages)
	}
	if took := state.Position.Offset - state.Oldest.Offset; took != uint64(p.messages) {
		return fmt.Errorf("%d messages took %d offsets; this test needs one offset for each", p.messages, took)
	}
	return nil
}

// forget empties the topic, so that the next has room.
func (p *publisher) forget() error {
	if err := p.remove(p.authority, "/v1/topics/"+p.topic); err != nil {
		return fmt.Errorf("empty the topic: %w", err)
	}
	return nil
}

var errNoSession = errors.New("this is not the requested session")

// openSession opens a session for the topic from start on.
func openSession(e *exchange, authority, start string) (string, error) {
	from, err := wire.ParseStart(start)
	if err != nil {
		return "", err
	}
	request, err := json.Marshal(wire.OpenRequest{Topics: []wire.Start{from}})
	if err != nil {
		return "", err
	}
	head, body, err := e.call(post(authority, "/v1/sessions", "application/json", request))
	if err != nil {
		return "", err
	}
	var o wire.SessionOpened
	switch err := json.Unmarshal(body, &o); {
	case head.Status != http.StatusCreated:
		return "", fmt.Errorf("open a session: answered %d: %.300q", head.Status, body)
	case err != nil:
		return "", fmt.Errorf("opened session %.200q: %w", body, err)
	case o.Session == "" || len(o.Positions) != 1 || !o.Ack:
		return "", fmt.Errorf("opened session %.200q: %w", body, errNoSession)
	}
	return o.Session, nil
}
