package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/loadtest/stats"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Victims are what the well-behaved clients saw while an attack lasted.
type Victims struct {
	Deliveries
	Latency       *stats.Latency `json:"latency"` // from the instant at which a message was due to be published
	Lag           *stats.Latency `json:"lag"`     // from that instant to its sending
	SessionsLost  int64          `json:"sessions_lost"`
	Refused       int64          `json:"refused"` // publishes; each was tried again until it was taken
	FirstError    string         `json:"first_error,omitempty"`
	LoopCPU       time.Duration  `json:"loop_cpu_ns"`        // of the thread that measures
	WaitedForCore time.Duration  `json:"waited_for_core_ns"` // of the same
}

// A crowd is all victims on one loop, and the publisher who sends them a message
// each second. Orders come from another goroutine; all else is the loop's.
type crowd struct {
	loop   eventloop.Loop
	kit    client.Dialect
	orders chan task     // never closed
	ended  chan struct{} // closed when the loop has ended
	fault  error         // why; set before ended is closed
	topic  string
	before string // of a payload: what stands before its number
	after  string

	opened  int // victims that were told to connect
	count   int // victims that there are to be
	ready   int
	away    []absence // who comes back, the next one first
	ledger  *ledger
	publish *broadcaster

	found  Victims
	usage  eventloop.Usage // when found began
	opens  *task
	window *window
}

// A task is an order, and where its answer goes.
type task struct {
	order
	done chan<- outcome
}

type outcome struct {
	found any
	err   error
}

// An absence is a victim whose session was lost, and when it comes back.
type absence struct {
	victim int
	until  time.Duration
}

// A window is the messages over which victims are measured.
type window struct {
	task
	first, last int // numbers of messages
	over        time.Duration
}

const (
	period   = time.Second            // between two messages
	orderly  = 20 * time.Millisecond  // how often orders are looked for
	together = 50                     // victims that connect at one look
	grace    = 5 * time.Second        // for the last message of a window to come
	opening  = 20 * time.Second       // for all victims to have their sessions
	comeBack = time.Second            // after a session was lost
	retries  = 100 * time.Millisecond // after a publish was refused
)

// playVictims serves orders until in ends.
func playVictims(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	c := &crowd{orders: make(chan task), ended: make(chan struct{})}
	err := obey(in, out, func(o order) (any, error) {
		if o.Do == "open" {
			if err := c.prepare(o); err != nil {
				return nil, err
			}
			go c.run(ctx)
		}
		return c.ask(o)
	})
	cancel()
	if c.loop != nil {
		<-c.ended
		c.loop.Close()
	}
	return err
}

// run is the loop's goroutine.
func (c *crowd) run(ctx context.Context) {
	defer close(c.ended)
	c.fault = c.loop.Run(ctx, c)
}

// ask gives the loop an order, and waits until it is carried out.
func (c *crowd) ask(o order) (any, error) {
	if c.loop == nil {
		return nil, errors.New("the victims are not open")
	}
	done := make(chan outcome, 1)
	select {
	case c.orders <- task{o, done}:
	case <-c.ended:
		return nil, fmt.Errorf("the loop has ended: %w", c.fault)
	}
	select {
	case answer := <-done:
		return answer.found, answer.err
	case <-c.ended:
		return nil, fmt.Errorf("the loop has ended: %w", c.fault)
	}
}

// prepare is for before the loop runs.
func (c *crowd) prepare(o order) error {
	if c.loop != nil {
		return errors.New("the victims are open already")
	}
	target, err := net.ResolveTCPAddr("tcp", o.Target)
	if err != nil {
		return err
	}
	if err := loadtest.CheckOpenFiles(o.Count); err != nil {
		return err
	}
	c.count, c.ledger = o.Count, newLedger(o.Count)
	c.before, c.after = loadtest.ShortStrings()
	c.kit = client.NewDialect(client.Options{Dialect: client.Pubsubd, Authority: o.Target, ContentType: "application/json", Mode: client.Batch})
	c.topic = c.kit.TopicName("abuse"+strconv.Itoa(os.Getpid()), 0)
	c.publish = newBroadcaster(c)
	c.found = nothingFound()
	loop, err := eventloop.New(eventloop.Config{Target: target})
	if err != nil {
		return err
	}
	c.loop = loop
	return nil
}

func nothingFound() Victims { return Victims{Latency: stats.NewLatency(), Lag: stats.NewLatency()} }

// forget begins a new account.
func (c *crowd) forget() {
	c.found = nothingFound()
	c.usage, _ = c.loop.Usage()
}

// Due is part of eventloop.Driver.
func (c *crowd) Due(now time.Duration) (time.Duration, bool) {
	select {
	case t := <-c.orders:
		c.begin(t, now)
	default:
	}
	c.connect(now)
	next := c.publish.due(now)
	c.maybeReply(now)
	return min(next, now+orderly), false
}

func (c *crowd) begin(t task, now time.Duration) {
	switch t.Do {
	case "open":
		c.opens = &t
	case "measure":
		first := c.publish.next()
		last := first + int(t.Lasts/period) - 1
		c.window = &window{task: t, first: first, last: last, over: now + t.Lasts + period + grace}
	default:
		t.done <- outcome{err: fmt.Errorf("order %q is not known", t.Do)}
	}
}

// connect has some of those connect who are not there, or who come back.
func (c *crowd) connect(now time.Duration) {
	for range together {
		switch {
		case c.opened < c.count:
			c.opened++
			c.join(c.opened - 1)
		case len(c.away) > 0 && c.away[0].until <= now:
			victim := c.away[0].victim
			c.away = c.away[1:]
			c.join(victim)
		default:
			return
		}
	}
}

func (c *crowd) join(victim int) { c.loop.Dial(c.kit.Subscriber(victim, c.topic, c)) }

// maybeReply answers an order that is carried out.
func (c *crowd) maybeReply(now time.Duration) {
	if o := c.opens; o != nil && (c.ready == c.count || now > opening) {
		c.opens = nil
		o.done <- outcome{err: c.opening()}
		c.publish.start(now)
		c.forget()
	}
	if w := c.window; w != nil && (now > w.over || c.hasAll(w)) {
		c.window = nil
		w.done <- outcome{found: c.measured(w)}
	}
}

// opening returns an error unless everyone is there.
func (c *crowd) opening() error {
	if c.ready == c.count {
		return nil
	}
	return fmt.Errorf("%d of %d sessions are open after %v; the first error: %s", c.ready, c.count, opening, c.found.FirstError)
}

func (c *crowd) hasAll(w *window) bool {
	return c.publish.answered >= w.last && c.ledger.missing(w.first, w.last) == 0
}

// measured closes the account of a window.
func (c *crowd) measured(w *window) Victims {
	c.found.Deliveries = c.ledger.take()
	c.found.Expected = int64(w.last-w.first+1) * int64(c.count)
	c.found.Delivered = c.found.Latency.Count()
	c.found.Lost += c.ledger.missing(w.first, w.last)
	usage, _ := c.loop.Usage()
	c.found.LoopCPU, c.found.WaitedForCore = usage.CPU-c.usage.CPU, usage.Waited-c.usage.Waited
	found := c.found
	c.forget()
	return found
}

// Ready is part of client.Events.
func (c *crowd) Ready(victim int, _ wire.Position) {
	c.ready++
	c.ledger.begins(victim, c.publish.sent)
}

// Message is part of client.Events.
func (c *crowd) Message(victim int, f *client.Frame, now time.Duration) error {
	number, err := c.read(string(f.Data))
	if err != nil {
		return err
	}
	if !c.ledger.comes(victim, number) {
		return nil
	}
	if w := c.window; w != nil && number >= w.first && number <= w.last {
		c.found.Latency.Record(now - c.publish.instant(number))
	}
	return nil
}

// write returns the payload of a message, and read its number.
func (c *crowd) write(number int) []byte {
	return fmt.Appendf(nil, "%s%0*d%s", c.before, loadtest.SequenceDigits, number, c.after)
}

func (c *crowd) read(payload string) (int, error) {
	if len(payload) != len(c.before)+loadtest.SequenceDigits+len(c.after) {
		return 0, fmt.Errorf("message %.100q is none of ours", payload)
	}
	number, err := strconv.Atoi(payload[len(c.before):][:loadtest.SequenceDigits])
	if err != nil || number > c.publish.sent {
		return 0, fmt.Errorf("message %.100q is none of ours", payload)
	}
	return number, nil
}

// Gap is part of client.Events.
func (c *crowd) Gap(int, *wire.Gap) { c.ledger.count.Gaps++ }

// Closed is part of client.Events. A victim's session is lost with its connection:
// a client that keeps to the protocol has done nothing to deserve that.
func (c *crowd) Closed(victim int, err error) {
	c.fails(err)
	c.found.SessionsLost++
	if c.ledger.leaves(victim) {
		c.ready--
	}
	c.away = append(c.away, absence{victim, c.loop.Now() + comeBack})
}

func (c *crowd) fails(err error) {
	if c.found.FirstError == "" && err != nil {
		c.found.FirstError = err.Error()
	}
}
