package broker

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// awayTime is for how long a restored topic is kept though nobody is there: so long
// clients may take to come back, and to find it numbered as it was.
const awayTime = time.Minute

// Restore returns a broker that goes on where one was Saved: with its epoch, and
// with as much of what its topics held as cfg lets them hold at now; the time in
// between counts. It is New otherwise. Any error means that r is no whole state of
// this format, or could not be read; nothing is left of it.
//
// r is not trusted: what it says is checked as what a client says is, and held
// within the same bounds while it is read.
func Restore(cfg Config, m *metrics.Metrics, r io.Reader, now time.Time) (*Broker, error) {
	s := newRestoring(New(cfg, m, now), r, now)
	err := s.begin()
	for err == nil && !s.over {
		err = s.next()
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", s.lines.count+1, err)
	}
	s.broker.memory.MakeRoom(0)
	s.broker.results.sweep(now)
	return s.broker, nil
}

// A restoring is one Restore under way.
type restoring struct {
	broker *Broker
	lines  *savedLines
	now    time.Time

	topic  *topic // of the messages that come; nil: it is not kept
	head   uint64 // of that topic
	offset uint64 // that the next message has to be above
	topics bool   // there was one
	over   bool   // the end was there

	reclaimAt int64 // memory in use at which to hold the budget
}

func newRestoring(b *Broker, r io.Reader, now time.Time) *restoring {
	lines := &savedLines{from: bufio.NewReaderSize(r, savedBuffer), sum: sha256.New()}
	return &restoring{broker: b, lines: lines, now: now}
}

// begin takes the first line.
func (s *restoring) begin() error {
	line, err := s.lines.next()
	if err != nil {
		return err
	}
	var head savedHead
	if json.Unmarshal(line, &head) != nil || head.Version == 0 {
		return errors.New("it is no state of pubsubd")
	}
	if err := head.check(); err != nil {
		return err
	}
	s.broker.epoch = head.Epoch
	s.broker.floor.Store(head.Floor)
	s.broker.forgotten.restore(head.Forgotten)
	s.lines.taken(line)
	return nil
}

// next takes one line.
func (s *restoring) next() error {
	line, err := s.lines.next()
	if err != nil {
		return err
	}
	var saved savedLine
	if err := json.Unmarshal(line, &saved); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	if err := s.take(&saved, line); err != nil {
		return err
	}
	s.lines.taken(line)
	return nil
}

func (s *restoring) take(saved *savedLine, line []byte) error {
	switch {
	case saved.Topic != nil:
		return s.takeTopic(saved.Topic)
	case saved.Message != nil:
		return s.takeMessage(saved.Message)
	case saved.Result != nil:
		return s.takeResult(saved.Result)
	case saved.End != nil:
		return s.takeEnd(saved.End, line)
	}
	return errors.New("it is of no kind that this daemon knows")
}

func (s *restoring) takeTopic(saved *savedTopic) error {
	if err := saved.check(); err != nil {
		return err
	}
	b := s.broker
	if b.find(saved.Name) != nil {
		return fmt.Errorf("topic %q comes twice", saved.Name)
	}
	s.topics, s.topic, s.head, s.offset = true, nil, saved.Head, saved.Lost
	t, err := b.makeTopic(b.shard(saved.Name), saved.Name)
	if err != nil {
		b.raiseFloor(saved.Head) // there is no room: it is as if it had been forgotten
		b.forgotten.add(saved.Name, saved.Head)
		return nil
	}
	t.begin(saved, s.now.Add(awayTime))
	s.topic = t
	return nil
}

// begin makes a new topic the saved one, as yet without messages, which is not
// forgotten before the given time.
func (t *topic) begin(saved *savedTopic, keepUntil time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.born, t.head, t.mark = saved.Born, saved.Head, saved.Head // all that comes was fanned out
	t.keepUntil = keepUntil
	t.history.lost, t.history.reason = saved.Lost, saved.Reason
}

func (s *restoring) takeMessage(saved *savedMessage) error {
	switch {
	case !s.topics:
		return errors.New("a message comes before its topic")
	case saved.Offset <= s.offset || saved.Offset > s.head:
		return fmt.Errorf("a message has offset %d, after %d and before the head %d", saved.Offset, s.offset, s.head)
	}
	if err := saved.check(); err != nil {
		return err
	}
	s.offset = saved.Offset
	if s.topic != nil {
		s.topic.regain(saved, s.now)
		s.holdBudget()
	}
	return nil
}

// holdBudget has the oldest messages go when those that were taken use more than
// there may be. It lets a little more of them come before it looks again: a look
// goes over all topics.
func (s *restoring) holdBudget() {
	b := s.broker
	if b.memory.Used() < s.reclaimAt {
		return
	}
	b.memory.MakeRoom(0)
	_, budget := b.memory.Held()
	s.reclaimAt = max(budget, b.memory.Used()) + budget/memory.Slack
}

// regain appends a saved message, and lets go of what does not fit at now. A time
// to come, by a clock that was set back since, counts as now.
func (t *topic) regain(saved *savedMessage, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := saved.message(t.positionLocked(saved.Offset))
	age := max(0, now.Sub(time.UnixMilli(saved.Time)))
	ttl := time.Duration(saved.TTL) * time.Millisecond
	t.history.push(frame.New(m, now.Add(-age), ttl, t.broker.memory))
	t.broker.memory.Add(memory.History, int64(m.Size()))
	t.trimLocked(now)
}

func (s *restoring) takeResult(saved *savedResult) error {
	if err := saved.check(s.broker.epoch); err != nil {
		return err
	}
	s.broker.results.Add(Result{
		Scope: Digest(saved.Scope), Fingerprint: Digest(saved.Fingerprint),
		Published: wire.Published{Position: saved.Position, Time: saved.Time},
	})
	return nil
}

// takeEnd takes the last line, which is as Save writes it or not the end.
func (s *restoring) takeEnd(saved *savedEnd, line []byte) error {
	if saved.Lines != s.lines.count {
		return fmt.Errorf("it ends after %d lines, and should have %d", s.lines.count, saved.Lines)
	}
	if want, _ := json.Marshal(endOf(s.lines.count, s.lines.sum)); !bytes.Equal(bytes.TrimSuffix(line, []byte("\n")), want) {
		return errors.New("it was changed: the checksum is another")
	}
	if _, err := s.lines.from.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind its end")
	}
	s.over = true
	return nil
}

// savedLines are the lines of a saved state.
type savedLines struct {
	from  *bufio.Reader
	sum   hash.Hash // of those taken
	count int       // of those taken
	long  []byte    // what a line has beyond from's buffer, with it; reused
}

// next returns the next line with its end, until it is called again.
func (l *savedLines) next() ([]byte, error) {
	l.long = l.long[:0]
	for {
		part, err := l.from.ReadSlice('\n')
		switch {
		case len(l.long)+len(part) > maxSavedLine:
			return nil, fmt.Errorf("it is longer than %d bytes", maxSavedLine)
		case err == nil && len(l.long) == 0:
			return part, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("it is cut: there is no end")
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
		if l.long = append(l.long, part...); err == nil {
			return l.long, nil
		}
	}
}

// taken counts a line that was good.
func (l *savedLines) taken(line []byte) {
	l.count++
	l.sum.Write(line) // never fails: hash.Hash
}
