package store

import (
	"bufio"
	"bytes"
	"cmp"
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

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// The state is lines of JSON. The daemon writes and reads one line at a time:
//
//	{"pubsubd_state":1,"epoch":"k3","floor":17,"saved":1700000000000}
//	{"topic":{"name":"a.b","head":19,"lost":16,"reason":"evicted"}}
//	{"message":{"offset":17,"time":1700000000000,"data":"MQ=="}}
//	{"message":{"offset":18,"time":1700000000001,"ttl_ms":1000,"type":"text/plain","data":"dHdv","key":"k"}}
//	{"message":{"offset":19,"time":1700000000001,"cbor":"AQ=="}}
//	{"message_by":{"offset":20,"time":1700000000001,"data":"MQ==","by":"alice","claims":{"name":"Alice"}}}
//	{"result":{"scope":"…","fingerprint":"…","position":"a.b@k3:18","time":1700000000001}}
//	{"end":{"lines":6,"sha256":"…"}}
//
// Each line but the last is an entry of broker.Export. A message belongs to the topic
// above it. One with an identity is another kind of line: a daemon that would forget the
// identity rejects the file. Results of idempotency keys are in order, the oldest first. The end has the
// number of the lines above it and their SHA-256, line ends included. A new kind of entry
// gets a new kind of line. A change of these lines needs another formatVersion.

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

	MessageBy *savedMessage `json:"message_by,omitempty"` // with By
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
	Data   []byte `json:"data,omitempty"` // in base64, which keeps every byte
	CBOR   []byte `json:"cbor,omitempty"` // the data, if wire.Message.CBOR; an older daemon rejects it because it has no data
	ID     string `json:"id,omitempty"`
	Key    string `json:"key,omitempty"`
	Client string `json:"client,omitempty"`

	By     string          `json:"by,omitempty"`
	Claims json.RawMessage `json:"claims,omitempty"`
}

// savedResult is an idempotency key and the result of its publish.
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

// endOf returns the last line, for the lines above it and their checksum.
func endOf(lines int, sum hash.Hash) savedLine {
	return savedLine{End: &savedEnd{Lines: lines, SHA256: hex.EncodeToString(sum.Sum(nil))}}
}

// bufferBytes is how much is written at a time, and the least that is read.
const bufferBytes = 64 << 10

// A writer writes one state.
type writer struct {
	sum   hash.Hash // of all lines
	lines *json.Encoder
	count int
}

// write writes b's state, which must not change any more. The error is w's.
func write(w io.Writer, b *broker.Broker) error {
	to, s := bufio.NewWriterSize(w, bufferBytes), &writer{sum: sha256.New()}
	s.lines = json.NewEncoder(io.MultiWriter(to, s.sum))
	s.lines.SetEscapeHTML(false)
	if err := b.Export(s.entry); err != nil {
		return err
	}
	if err := s.lines.Encode(endOf(s.count, s.sum)); err != nil {
		return err
	}
	return to.Flush()
}

func (s *writer) entry(e broker.Entry) error {
	s.count++
	m, at := e.Message, e.Message.Position
	switch e.Op {
	case broker.OpEpoch:
		return s.lines.Encode(savedHead{
			Version: formatVersion, Epoch: at.Epoch, Floor: at.Offset, Forgotten: e.State.Forgotten, Saved: time.Now().UnixMilli(),
		})
	case broker.OpTopic:
		return s.lines.Encode(savedLine{Topic: &savedTopic{at.Topic, at.Offset, e.State.Lost, e.State.Born, e.State.Reason}})
	case broker.OpKey:
		return s.lines.Encode(savedLine{Result: &savedResult{e.Key.Scope[:], e.Key.Print[:], at, m.Time}})
	}
	// JSON strings are UTF-8.
	if !utf8.ValidString(m.Type) || !utf8.ValidString(m.Key) || !utf8.ValidString(m.ID) || !utf8.ValidString(m.By) {
		return fmt.Errorf("BUG: message %s has a string that is not UTF-8", at)
	}
	saved := savedMessage{
		Offset: at.Offset, Time: m.Time, TTL: e.TTL.Milliseconds(),
		Type: m.Type, Data: m.Data, ID: m.ID, Key: m.Key, Client: m.Client, By: m.By, Claims: m.Claims,
	}
	if m.CBOR {
		saved.Data, saved.CBOR = nil, m.Data
	}
	if m.By != "" {
		return s.lines.Encode(savedLine{MessageBy: &saved})
	}
	return s.lines.Encode(savedLine{Message: &saved})
}

// A reader reads one state into a broker. The state is not trusted: the reader checks it
// as the daemon checks requests, and the broker holds it within the same bounds.
type reader struct {
	broker *broker.Broker
	lines  *bufio.Scanner // one is left in it until next
	sum    hash.Hash      // of the lines that were taken
	count  int            // of the lines that were taken

	epoch  string
	topic  *savedTopic // of the messages that follow; nil: none yet
	offset uint64      // the next message has a higher one
	over   bool        // the end was read
}

// read returns a broker, as open makes it, that continues from a state, with as much of it
// as its settings allow. Messages and keys have aged since. If the state is not whole, not of
// this format or cannot be read, it returns an error.
func read(r io.Reader, open func() *broker.Broker, now time.Time) (*broker.Broker, error) {
	s := newReader(r, open())
	err := s.next(s.head)
	for err == nil && !s.over {
		err = s.next(s.line)
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", s.count+1, err)
	}
	s.broker.Sweep(now)
	return s.broker, nil
}

// maxLine bounds a line: the largest message, in base64, and its other members.
const maxLine = 16 << 20

func newReader(r io.Reader, b *broker.Broker) *reader {
	s := &reader{broker: b, lines: bufio.NewScanner(r), sum: sha256.New()}
	s.lines.Buffer(make([]byte, bufferBytes), maxLine)
	s.lines.Split(splitLine)
	return s
}

var errTruncated = errors.New("the file is truncated")

// splitLine is a bufio.SplitFunc for lines with their ends.
func splitLine(data []byte, atEOF bool) (advance int, line []byte, err error) {
	end := bytes.IndexByte(data, '\n') + 1
	switch {
	case end > 0:
		return end, data[:end], nil
	case atEOF && len(data) > 0:
		return 0, nil, errTruncated
	}
	return 0, nil, nil
}

// next takes one line.
func (s *reader) next(take func(line []byte) error) error {
	switch ok, err := s.lines.Scan(), s.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("it is longer than %d bytes", maxLine)
	case !ok:
		return cmp.Or(err, errTruncated)
	}
	if err := take(s.lines.Bytes()); err != nil {
		return err
	}
	s.count++
	s.sum.Write(s.lines.Bytes()) // never fails: hash.Hash
	return nil
}

func (s *reader) apply(e broker.Entry) error {
	_, err := s.broker.Apply(e)
	return err
}

// maxOffset is the largest integer that every JSON reader keeps exactly.
const maxOffset = 1<<53 - 1

func (s *reader) head(line []byte) error {
	var head savedHead
	switch err := json.Unmarshal(line, &head); {
	case err != nil || head.Version == 0:
		return errors.New("this is not a state file of pubsubd")
	case head.Version != formatVersion:
		return fmt.Errorf("the file has version %d of the format; this daemon reads version %d", head.Version, formatVersion)
	case head.Floor > maxOffset || head.Forgotten > maxOffset:
		return fmt.Errorf("the floor %d or the count %d of forgotten topics is too large", head.Floor, head.Forgotten)
	}
	if _, err := wire.ParsePosition("a@" + head.Epoch + ":0"); err != nil {
		return fmt.Errorf("the epoch %.40q is not valid", head.Epoch)
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
	case saved.MessageBy != nil:
		return s.takeMessage(saved.MessageBy)
	case saved.Result != nil:
		return s.takeResult(saved.Result)
	case saved.End != nil:
		return s.takeEnd(saved.End, line)
	}
	return errors.New("this daemon does not know its kind")
}

func (s *reader) takeTopic(saved *savedTopic) error {
	switch err := wire.CheckTopic(saved.Name); {
	case err != nil:
		return err
	case s.broker.Has(saved.Name):
		return fmt.Errorf("topic %q comes twice", saved.Name)
	case saved.Born > saved.Lost || saved.Lost > saved.Head || saved.Head > maxOffset:
		return fmt.Errorf("topic %q has offsets that do not rise: born %d, lost %d, head %d", saved.Name, saved.Born, saved.Lost, saved.Head)
	case !slices.Contains(wire.GapReasons(), saved.Reason):
		return fmt.Errorf("topic %q has an unknown gap reason, %.40q", saved.Name, saved.Reason)
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
		return fmt.Errorf("the message has offset %d; it must be above %d and at most the head %d", saved.Offset, s.offset, s.topic.Head)
	}
	if err := saved.check(); err != nil {
		return err
	}
	s.offset = saved.Offset
	m := &wire.Message{
		Position: wire.Position{Topic: s.topic.Name, Epoch: s.epoch, Offset: saved.Offset},
		Time:     saved.Time, Type: saved.Type, Data: saved.Data, ID: saved.ID, Key: saved.Key, Client: saved.Client,
		By: saved.By, Claims: saved.Claims,
	}
	if saved.CBOR != nil {
		m.Data, m.CBOR = saved.CBOR, true
	}
	return s.apply(broker.Entry{Op: broker.OpPublish, Message: m, TTL: time.Duration(saved.TTL) * time.Millisecond})
}

func (s *reader) takeResult(saved *savedResult) error {
	const size = len(broker.Digest{})
	if len(saved.Scope) != size || len(saved.Fingerprint) != size || saved.Time < 0 || saved.Position.Epoch != s.epoch {
		return errors.New("the result of the idempotency key is not valid")
	}
	key := broker.Key{Scope: broker.Digest(saved.Scope), Print: broker.Digest(saved.Fingerprint)}
	return s.apply(broker.Entry{Op: broker.OpKey, Message: &wire.Message{Position: saved.Position, Time: saved.Time}, Key: key})
}

// takeEnd takes the last line. It must be as write writes it, byte for byte.
func (s *reader) takeEnd(saved *savedEnd, line []byte) error {
	want, _ := json.Marshal(endOf(s.count, s.sum))
	switch {
	case saved.Lines != s.count:
		return fmt.Errorf("the file ends after %d lines; it should have %d", s.count, saved.Lines)
	case !bytes.Equal(line, append(want, '\n')):
		return errors.New("the file was changed: the checksum does not match")
	case s.lines.Scan() || s.lines.Err() != nil:
		return errors.New("more data follows the end")
	}
	s.over = true
	return nil
}

// maxTTLMS is the longest life that a time.Duration holds.
const maxTTLMS = math.MaxInt64 / int64(time.Millisecond)

func (m *savedMessage) check() error {
	switch {
	case m.Time < 0 || m.TTL < 0 || m.TTL > maxTTLMS:
		return errors.New("the message's time is not valid")
	case len(m.Type) > wire.MaxTypeBytes || len(m.Key) > wire.MaxKeyBytes || len(m.ID) > wire.MaxKeyBytes:
		return errors.New("the message's type, key or id is too long")
	case m.Client != "" && wire.CheckClient(m.Client) != nil:
		return wire.CheckClient(m.Client)
	case len(m.By) > wire.MaxByBytes || m.Claims != nil && !m.hasPublicClaims():
		return errors.New("the message's by is too long, or its claims are not valid")
	case m.CBOR != nil:
		return m.checkCBOR()
	case m.Type == "" && !isCompactJSON(m.Data):
		return errors.New("the message's data is not JSON")
	}
	return nil
}

// isCompactJSON reports whether data is JSON as wire.CompactJSON returns it, but a member may
// come twice: older daemons allowed that.
func isCompactJSON(data []byte) bool {
	compact, err := jsontext.AppendFormat(nil, data,
		jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	return err == nil && len(compact) == len(data) && utf8.Valid(data)
}

// hasPublicClaims reports whether the claims have the form that tokens may have: a compact
// JSON object of few bytes, of a known subject.
func (m *savedMessage) hasPublicClaims() bool {
	return m.By != "" && len(m.Claims) > 0 && len(m.Claims) <= wire.MaxClaimsBytes && m.Claims[0] == '{' && isCompactJSON(m.Claims)
}

func (m *savedMessage) checkCBOR() error {
	if m.Type != "" || m.Data != nil {
		return errors.New("the message has two payloads")
	}
	if model, err := cbor.Check(m.CBOR); err != nil || model != cbor.IsJSON {
		return errors.New("the message's data is not CBOR of JSON values")
	}
	return nil
}
