package store

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// The state is lines of JSON, so that neither writing nor reading ever holds more of it
// than a line:
//
//	{"pubsubd_state":1,"epoch":"k3","floor":17,"saved":1700000000000}
//	{"topic":{"name":"a.b","head":19,"lost":16,"reason":"evicted"}}
//	{"message":{"offset":17,"time":1700000000000,"data":"MQ=="}}
//	{"message":{"offset":18,"time":1700000000001,"ttl_ms":1000,"type":"text/plain","data":"dHdv","key":"k"}}
//	{"message":{"offset":19,"time":1700000000001,"cbor":"AQ=="}}
//	{"result":{"scope":"…","fingerprint":"…","position":"a.b@k3:18","time":1700000000001}}
//	{"end":{"lines":6,"sha256":"…"}}
//
// Each line but the last is an entry of broker.Export. A message belongs to the topic
// before it. A result is of an idempotency key, the oldest first. The end has the number
// of the lines above it and their SHA-256, line ends included. A new kind of entry is a
// new kind of line. A change of these lines is another formatVersion.

const formatVersion = 1

// savedHead is the first line.
type savedHead struct {
	Version int    `json:"pubsubd_state"`
	Epoch   string `json:"epoch"`
	Floor   uint64 `json:"floor"`
	Saved   int64  `json:"saved"` // Unix milliseconds; for people

	// Forgotten is the number of topics that were forgotten with messages.
	Forgotten uint64 `json:"forgotten,omitempty"`
}

// savedLine is any other line; one member is set.
type savedLine struct {
	Topic   *savedTopic   `json:"topic,omitempty"`
	Message *savedMessage `json:"message,omitempty"`
	Result  *savedResult  `json:"result,omitempty"`
	End     *savedEnd     `json:"end,omitempty"`
}

type savedTopic struct {
	Name   string         `json:"name"`
	Head   uint64         `json:"head"`
	Lost   uint64         `json:"lost"`
	Born   uint64         `json:"born,omitempty"`
	Reason wire.GapReason `json:"reason"`
}

// savedMessage is a wire.Message whose topic and epoch are in the lines above it.
type savedMessage struct {
	Offset uint64 `json:"offset"`
	Time   int64  `json:"time"`
	TTL    int64  `json:"ttl_ms,omitempty"`
	Type   string `json:"type,omitempty"`
	Data   []byte `json:"data,omitempty"` // in base64: every byte counts
	CBOR   []byte `json:"cbor,omitempty"` // the data, if wire.Message.CBOR; an older daemon misses data
	ID     string `json:"id,omitempty"`
	Key    string `json:"key,omitempty"`
	Client string `json:"client,omitempty"`
}

// savedResult is an idempotency key and what its publish was answered with.
type savedResult struct {
	Scope       []byte        `json:"scope"`
	Fingerprint []byte        `json:"fingerprint"`
	Position    wire.Position `json:"position"`
	Time        int64         `json:"time"`
}

type savedEnd struct {
	Lines  int    `json:"lines"`
	SHA256 string `json:"sha256"`
}

// endOf returns the last line, behind lines that were counted and summed up.
func endOf(lines int, sum hash.Hash) savedLine {
	return savedLine{End: &savedEnd{Lines: lines, SHA256: hex.EncodeToString(sum.Sum(nil))}}
}

// bufferBytes is how much is read or written at a time.
const bufferBytes = 64 << 10

// A writer writes one state.
type writer struct {
	to    *bufio.Writer
	sum   hash.Hash // of all that was written
	lines *json.Encoder
	count int
	now   time.Time
}

// write writes b's state, which must not change any more. The error is w's.
func write(w io.Writer, b *broker.Broker, now time.Time) error {
	s := &writer{to: bufio.NewWriterSize(w, bufferBytes), sum: sha256.New(), now: now}
	s.lines = json.NewEncoder(io.MultiWriter(s.to, s.sum))
	s.lines.SetEscapeHTML(false)
	if err := b.Export(s.entry); err != nil {
		return err
	}
	if err := s.lines.Encode(endOf(s.count, s.sum)); err != nil {
		return err
	}
	return s.to.Flush()
}

func (s *writer) entry(e broker.Entry) error {
	line, err := s.line(e)
	if err != nil {
		return err
	}
	s.count++
	return s.lines.Encode(line)
}

func (s *writer) line(e broker.Entry) (any, error) {
	m, at := e.Message, e.Message.Position
	switch e.Op {
	case broker.OpEpoch:
		return savedHead{Version: formatVersion, Epoch: at.Epoch, Floor: at.Offset, Forgotten: e.State.Forgotten, Saved: s.now.UnixMilli()}, nil
	case broker.OpTopic:
		return savedLine{Topic: &savedTopic{Name: at.Topic, Head: at.Offset, Lost: e.State.Lost, Born: e.State.Born, Reason: e.State.Reason}}, nil
	case broker.OpKey:
		return savedLine{Result: &savedResult{Scope: e.Key.Scope[:], Fingerprint: e.Key.Print[:], Position: at, Time: m.Time}}, nil
	}
	// JSON has no string that is not UTF-8.
	if !utf8.ValidString(m.Type) || !utf8.ValidString(m.Key) || !utf8.ValidString(m.ID) {
		return nil, fmt.Errorf("BUG: message %s has a string that is not UTF-8", at)
	}
	saved := savedMessage{
		Offset: at.Offset, Time: m.Time, TTL: e.TTL.Milliseconds(),
		Type: m.Type, Data: m.Data, ID: m.ID, Key: m.Key, Client: m.Client,
	}
	if m.CBOR {
		saved.Data, saved.CBOR = nil, m.Data
	}
	return savedLine{Message: &saved}, nil
}

// A reader reads one state into a broker. The state is not trusted: what it says is
// checked as what a client says is, and held within the same bounds while it is read.
type reader struct {
	broker *broker.Broker
	lines  lines
	now    time.Time

	epoch  string
	topic  *savedTopic // of the messages that come; nil: none yet
	offset uint64      // that the next message has to be above
	over   bool        // the end was read
}

// read returns a broker that continues from a state, with as much of it as cfg allows.
// The time since counts. An error means that r is no whole state of this format, or
// could not be read; nothing is left of it then.
func read(r io.Reader, cfg broker.Config, m *metrics.Metrics, now time.Time) (*broker.Broker, error) {
	s := newReader(r, cfg, m, now)
	err := s.next(s.head)
	for err == nil && !s.over {
		err = s.next(s.line)
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", s.lines.count+1, err)
	}
	s.broker.Sweep(now)
	return s.broker, nil
}

func newReader(r io.Reader, cfg broker.Config, m *metrics.Metrics, now time.Time) *reader {
	from := lines{from: bufio.NewReaderSize(r, bufferBytes), sum: sha256.New()}
	return &reader{broker: broker.New(cfg, m, now), lines: from, now: now}
}

// next takes one line.
func (s *reader) next(take func(line []byte) error) error {
	line, err := s.lines.next()
	if err == nil {
		err = take(line)
	}
	if err == nil {
		s.lines.count++
		s.lines.sum.Write(line) // never fails: hash.Hash
	}
	return err
}

func (s *reader) apply(e broker.Entry) error {
	_, err := s.broker.Apply(e, nil)
	return err
}

func (s *reader) head(line []byte) error {
	var head savedHead
	if json.Unmarshal(line, &head) != nil || head.Version == 0 {
		return errors.New("it is no state of pubsubd")
	}
	if err := head.check(); err != nil {
		return err
	}
	s.epoch = head.Epoch
	at := wire.Position{Epoch: head.Epoch, Offset: head.Floor}
	return s.apply(broker.Entry{Op: broker.OpEpoch, Message: &wire.Message{Position: at}, State: &broker.State{Forgotten: head.Forgotten}})
}

func (s *reader) line(line []byte) error {
	var saved savedLine
	if err := json.Unmarshal(line, &saved); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
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

func (s *reader) takeTopic(saved *savedTopic) error {
	if err := saved.check(); err != nil {
		return err
	}
	if s.broker.Has(saved.Name) {
		return fmt.Errorf("topic %q comes twice", saved.Name)
	}
	s.topic, s.offset = saved, saved.Lost
	at := wire.Position{Topic: saved.Name, Epoch: s.epoch, Offset: saved.Head}
	state := &broker.State{Born: saved.Born, Lost: saved.Lost, Reason: saved.Reason}
	return s.apply(broker.Entry{Op: broker.OpTopic, Message: &wire.Message{Position: at}, State: state})
}

func (s *reader) takeMessage(saved *savedMessage) error {
	switch {
	case s.topic == nil:
		return errors.New("a message comes before its topic")
	case saved.Offset <= s.offset || saved.Offset > s.topic.Head:
		return fmt.Errorf("a message has offset %d, after %d and before the head %d", saved.Offset, s.offset, s.topic.Head)
	}
	if err := saved.check(); err != nil {
		return err
	}
	s.offset = saved.Offset
	m := &wire.Message{
		Position: wire.Position{Topic: s.topic.Name, Epoch: s.epoch, Offset: saved.Offset},
		Time:     saved.Time, Type: saved.Type, Data: saved.Data, ID: saved.ID, Key: saved.Key, Client: saved.Client,
	}
	if saved.CBOR != nil {
		m.Data, m.CBOR = saved.CBOR, true
	}
	age := max(0, s.now.Sub(time.UnixMilli(saved.Time))) // a time to come, by a clock that was set back, is now
	return s.apply(broker.Entry{Op: broker.OpPublish, Message: m, TTL: time.Duration(saved.TTL) * time.Millisecond, Accepted: s.now.Add(-age)})
}

func (s *reader) takeResult(saved *savedResult) error {
	if len(saved.Scope) != len(broker.Digest{}) || len(saved.Fingerprint) != len(broker.Digest{}) || saved.Time < 0 || saved.Position.Epoch != s.epoch {
		return errors.New("the idempotency key's result is none")
	}
	key := broker.Key{Scope: broker.Digest(saved.Scope), Print: broker.Digest(saved.Fingerprint)}
	return s.apply(broker.Entry{Op: broker.OpKey, Message: &wire.Message{Position: saved.Position, Time: saved.Time}, Key: key})
}

// takeEnd takes the last line, which is as write writes it or not the end.
func (s *reader) takeEnd(saved *savedEnd, line []byte) error {
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

// lines are the lines of a state.
type lines struct {
	from  *bufio.Reader
	sum   hash.Hash // of those taken
	count int       // of those taken
	long  []byte    // a line that is longer than from's buffer; reused
}

// maxLine bounds a line: the largest message, in base64, and its other members.
const maxLine = 16 << 20

// next returns the next line with its end, until it is called again.
func (l *lines) next() ([]byte, error) {
	l.long = l.long[:0]
	for {
		part, err := l.from.ReadSlice('\n')
		switch {
		case len(l.long)+len(part) > maxLine:
			return nil, fmt.Errorf("it is longer than %d bytes", maxLine)
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

// maxOffset is the largest integer that every JSON reader keeps exactly.
const maxOffset = 1<<53 - 1

func (h *savedHead) check() error {
	if h.Version != formatVersion {
		return fmt.Errorf("it is of version %d of the format, and this daemon reads version %d", h.Version, formatVersion)
	}
	if _, err := wire.ParsePosition("a@" + h.Epoch + ":0"); err != nil {
		return fmt.Errorf("the epoch %.40q is none", h.Epoch)
	}
	if err := checkOffset("forgotten", h.Forgotten); err != nil {
		return err
	}
	return checkOffset("floor", h.Floor)
}

func checkOffset(what string, offset uint64) error {
	if offset > maxOffset {
		return fmt.Errorf("the %s %d is no offset", what, offset)
	}
	return nil
}

func (t *savedTopic) check() error {
	if err := wire.CheckTopic(t.Name); err != nil {
		return err
	}
	if t.Lost > t.Head {
		return fmt.Errorf("topic %q has lost more (%d) than it had (%d)", t.Name, t.Lost, t.Head)
	}
	if t.Born > t.Lost {
		return fmt.Errorf("topic %q began at %d, and lost what came before %d", t.Name, t.Born, t.Lost)
	}
	if !slices.Contains(wire.GapReasons(), t.Reason) {
		return fmt.Errorf("topic %q has lost messages for the reason %.40q, which is none", t.Name, t.Reason)
	}
	return checkOffset("head", t.Head)
}

// maxTTLMS is the longest life that a time.Duration holds.
const maxTTLMS = math.MaxInt64 / int64(time.Millisecond)

func (m *savedMessage) check() error {
	switch {
	case m.Time < 0 || m.TTL < 0 || m.TTL > maxTTLMS:
		return errors.New("the message is of no time")
	case len(m.Type) > wire.MaxTypeBytes || len(m.Key) > wire.MaxKeyBytes || len(m.ID) > wire.MaxKeyBytes:
		return errors.New("the message's type, key or id is too long")
	case m.Client != "" && wire.CheckClient(m.Client) != nil:
		return wire.CheckClient(m.Client)
	case m.CBOR != nil:
		return m.checkCBOR()
	case m.Type == "" && !wire.IsCompactJSON(m.Data):
		return errors.New("the message is not the JSON that it says")
	}
	return nil
}

func (m *savedMessage) checkCBOR() error {
	if m.Type != "" || m.Data != nil {
		return errors.New("the message has two payloads")
	}
	if model, err := cbor.Check(m.CBOR); err != nil || model != cbor.IsJSON {
		return errors.New("the message is not the CBOR that it says")
	}
	return nil
}
