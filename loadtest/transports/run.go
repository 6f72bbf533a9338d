package transports

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/child"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A runner measures one subject after the other. It belongs to one goroutine.
type runner struct {
	cfg      *Config
	progress loadtest.Progress
	began    time.Time

	authority, tcp string // of the server
	pid            int
	bare           string // address of the floor
	barePID        int
	flags          []string // that the server was given
	session        string   // one that was opened: how long they are

	tag    string // of the topics' names
	topics int

	filled     wire.Position // just before the messages of the topic that is filled
	publishing float64       // messages a second while it was
	delivered  int64         // messages, to all clients
}

// Run makes the whole measurement. It returns when everything has stopped that it
// has started. A ConfigError means that it could not begin as it was asked for; with
// any other, the result has what was measured before, if it has rows.
func Run(ctx context.Context, cfg Config, p loadtest.Progress) (r Result, err error) {
	if err := cfg.check(); err != nil {
		return Result{}, err
	}
	if err := loadtest.CheckOpenFiles(2 * cfg.Clients); err != nil {
		return Result{}, err
	}
	m := &runner{cfg: &cfg, progress: p, began: time.Now(), tag: strings.ToLower(rand.Text()[:8])}
	server, err := m.startServer(ctx)
	if err != nil {
		return Result{}, err
	}
	if server != nil {
		defer func() { _ = server.Stop() }()
	}
	bare, err := m.startBare(ctx)
	if err != nil {
		return Result{}, err
	}
	if bare != nil {
		defer func() { _ = bare.Stop() }()
	}
	if err := m.prepare(ctx); err != nil {
		return Result{}, err
	}
	r = m.rounds(ctx)
	if server != nil && server.Ended() != nil {
		r.Failed = append(r.Failed, server.Ended().Error())
	}
	r.judge()
	return r, context.Cause(ctx)
}

// startServer starts the server, if it is not one that runs.
func (m *runner) startServer(ctx context.Context) (*child.Child, error) {
	if m.cfg.Target != "" {
		address, _, err := loadtest.Resolve(ctx, m.cfg.Target)
		if err != nil {
			return nil, err
		}
		m.authority, m.tcp, m.pid = address.String(), m.cfg.TargetTCP, m.cfg.ServerPID
		return nil, nil
	}
	m.flags = raisedLimits(m.cfg)
	c, err := child.Server(ctx, slices.Concat(m.cfg.ServerCommand, m.flags))
	if err != nil {
		return nil, err
	}
	m.authority, m.tcp, m.pid = c.Addresses().Public, c.Addresses().TCP, c.PID()
	m.progress.Notice(fmt.Sprintf("started a server as process %d at http://%s, with %s", m.pid, m.authority, strings.Join(m.flags, " ")))
	return c, nil
}

// Bytes that the server accounts for a message of a history, and for what it makes
// of one; both are more than enough.
const (
	heldBytes = 1 << 10
	madeBytes = 4 << 10
)

// answerBytes is how long an answer of many messages may be, which is 1 MiB by
// default: long enough for its end to weigh little.
const answerBytes = 16 << 20

// raisedLimits lets the server hold all messages of two topics: the one that is
// filled, and one that is live; and answer with as many as it can.
func raisedLimits(c *Config) []string {
	n := c.Messages + 1
	flags := []string{
		"--history-messages=" + strconv.Itoa(n), "--history-bytes=" + strconv.Itoa(max(n*heldBytes, 1<<20)), "--history-age=24h",
		"--memory-budget=" + strconv.Itoa(2*n*madeBytes+512<<20),
		// An answer of many messages ends at these, and the next poll is a round trip.
		"--session-unacked=" + strconv.Itoa(n), "--poll-answer-bytes=" + strconv.Itoa(answerBytes),
	}
	if slices.Contains(c.Transports, TCP) {
		flags = append(flags, "--listen-tcp=127.0.0.1:0")
	}
	return flags
}

func (m *runner) startBare(ctx context.Context) (*child.Child, error) {
	if !slices.ContainsFunc(m.cfg.subjects(), subject.isFloor) {
		return nil, nil
	}
	c, err := child.Floor(ctx, m.cfg.BareCommand)
	if err != nil {
		return nil, err
	}
	m.bare, m.barePID = c.Addresses().Public, c.PID()
	return c, nil
}

// prepare fills a topic and gives the floor what it is to send.
func (m *runner) prepare(ctx context.Context) error {
	if !slices.Contains(m.cfg.Ways, Filled) {
		return nil
	}
	p, err := newPublisher(ctx, m.authority, m.newTopic(), m.cfg.Messages)
	if err != nil {
		return err
	}
	defer p.conn.Close()
	begun := time.Now()
	if err := p.run(ctx); err != nil {
		return err
	}
	m.publishing = float64(m.cfg.Messages) / time.Since(begun).Seconds()
	if err := p.held(); err != nil {
		return err
	}
	m.filled = p.last
	m.filled.Offset -= uint64(m.cfg.Messages)
	if m.bare == "" {
		return nil
	}
	return m.loadBare(ctx, p.exchange)
}

// newTopic names a topic that no other test has used.
func (m *runner) newTopic() string {
	m.topics++
	return fmt.Sprintf("loadtest.%s.t%04d", m.tag, m.topics)
}

// rounds measures every subject once in each round, each round beginning with
// another, and leaves the first round out: it makes what the server makes once.
func (m *runner) rounds(ctx context.Context) Result {
	subjects := m.cfg.subjects()
	r := m.newResult()
	samples, given := make([][]Sample, len(subjects)), make([]bool, len(subjects))
	all := (m.cfg.Repeats + 1) * len(subjects)
	for n := range all {
		round, turn := n/len(subjects), n%len(subjects)
		i := (round + turn) % len(subjects)
		if given[i] || ctx.Err() != nil {
			continue
		}
		m.tell(subjects[i], n, all)
		s, err := m.measure(ctx, subjects[i])
		m.delivered += int64(m.cfg.messages(subjects[i])*m.cfg.Clients) - s.lost
		if err != nil && ctx.Err() == nil {
			given[i] = true
			r.note(subjects[i], err, &s)
		}
		if round > 0 && err == nil || s.accidents() > 0 {
			samples[i] = append(samples[i], s)
		}
	}
	for i, s := range subjects {
		r.Rows = append(r.Rows, newRow(s, m.cfg.messages(s), m.cfg.Clients, samples[i]))
	}
	r.Ratios = ratios(r.Rows)
	r.TookS = time.Since(m.began).Seconds()
	return r
}

func (m *runner) newResult() Result {
	return Result{
		Scenario: "transports", Started: m.began, Environment: loadtest.Here(), Payload: payloadBytes(), PublishPerSecond: m.publishing,
		Parameters: Parameters{
			Target: "http://" + m.authority, StartedServer: m.cfg.Target == "", ServerFlags: m.flags,
			Clients: m.cfg.Clients, Messages: m.cfg.Messages, SingleMessages: m.cfg.messages(subject{transport: Single}), Repeats: m.cfg.Repeats,
		},
		Failed: []string{}, Missed: []string{}, Ratios: []Ratio{},
	}
}

func payloadBytes() PayloadBytes {
	before, after := loadtest.ShortStrings()
	head, rest := cborStrings()
	const quotes, commas, brackets = 2 * 20, 19, 2
	whole := len(before) + len(after) + loadtest.SequenceDigits
	return PayloadBytes{Text: whole - quotes - commas - brackets, JSON: whole, CBOR: len(head) + len(rest) + loadtest.SequenceDigits}
}

func (m *runner) tell(s subject, done, total int) {
	m.progress.Update(loadtest.Status{
		Phase: s.String(), Done: done, Total: total, Unit: "measurements",
		Deliveries: m.delivered, Elapsed: time.Since(m.began),
	})
}
