package broker

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
)

// Save writes all that another daemon needs to go on as this broker: its epoch,
// its topics with what they hold, from where it numbers, and what it answered to
// idempotency keys. Close must have
// returned: what is published meanwhile may be missing. The error is w's.
//
// Topics that hold nothing are saved, too: without its head, a topic would begin
// above the floor, and its subscribers would be told of a loss that was none.
func (b *Broker) Save(w io.Writer, now time.Time) error {
	s := newSaving(w)
	s.write(savedHead{Version: stateVersion, Epoch: b.epoch, Floor: b.floor.Load(), Forgotten: b.forgotten.total(), Saved: now.UnixMilli()})
	for i := range b.shards {
		for _, t := range b.shards[i].all() {
			s.topic(t)
		}
	}
	b.results.Each(s.result)
	return s.end()
}

// Epoch returns the lifetime of the broker's numbering.
func (b *Broker) Epoch() string { return b.epoch }

func (s *shard) all() []*topic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	topics := make([]*topic, 0, len(s.topics))
	for _, t := range s.topics {
		topics = append(topics, t)
	}
	return topics
}

// A saving is one Save under way.
type saving struct {
	to    *bufio.Writer
	sum   hash.Hash // of all that was written
	lines *json.Encoder
	count int
	err   error // the first; nothing is written after it
}

func newSaving(w io.Writer) *saving {
	s := &saving{to: bufio.NewWriterSize(w, savedBuffer), sum: sha256.New()}
	s.lines = json.NewEncoder(io.MultiWriter(s.to, s.sum))
	s.lines.SetEscapeHTML(false)
	return s
}

// savedBuffer is how much is read or written at a time.
const savedBuffer = 64 << 10

func (s *saving) write(line any) {
	if s.err == nil {
		s.count++
		s.err = s.lines.Encode(line)
	}
}

func (s *saving) topic(t *topic) {
	saved, frames := t.saved()
	s.write(savedLine{Topic: &saved})
	for _, f := range frames {
		s.message(f)
	}
}

// saved returns what the topic is, and what it holds.
func (t *topic) saved() (savedTopic, []*frame.Frame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	saved := savedTopic{Name: t.name, Head: t.head, Lost: t.history.lost, Born: t.born, Reason: t.history.reason}
	return saved, t.history.appendAfter(nil, t.history.lost)
}

func (s *saving) message(f *frame.Frame) {
	m := f.Message()
	if s.err == nil && !savable(m) {
		s.err = fmt.Errorf("BUG: message %s says something that is not UTF-8", m.Position)
	}
	saved := savedMessage{
		Offset: m.Position.Offset, Time: m.Time, TTL: f.TTL().Milliseconds(),
		Type: m.Type, Data: m.Data, ID: m.ID, Key: m.Key, Client: m.Client,
	}
	if m.CBOR {
		saved.Data, saved.CBOR = nil, m.Data
	}
	s.write(savedLine{Message: &saved})
}

func (s *saving) result(r Result) {
	s.write(savedLine{Result: &savedResult{
		Scope: r.Scope[:], Fingerprint: r.Fingerprint[:], Position: r.Published.Position, Time: r.Published.Time,
	}})
}

func (s *saving) end() error {
	s.write(endOf(s.count, s.sum))
	if s.err != nil {
		return s.err
	}
	return s.to.Flush()
}
