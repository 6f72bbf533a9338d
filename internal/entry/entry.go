// Package entry encodes the changes of a broker's log as bytes. Every log that outlives the
// process uses it, so it stands below them: a log adds lengths and checksums of its own.
package entry

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A Kind says how to read the body of an entry. A log keeps it beside the body:
//
//	bits 0 to 4   the kind; a log has 8 to 15 for records of its own
//	bits 5 and 6  the version of the body; 0 is the first
//	bit 7         Optional
//
// A body never changes without a new version, and a release refuses what it does not know. If it
// dropped such an entry, it would serve another state than the release that wrote the log.
type Kind byte

// The kinds, in the version that this release writes.
const (
	Publish Kind = iota + 1
	Delete
	Lost
	Forget
	Epoch
	Topic
	Key

	// Optional marks an entry that a release may skip if it does not know the kind or the version.
	Optional Kind = 0x80

	kindBits    = 0x1f
	versionBits = 0x60
)

// IsEntry reports whether the kind is that of an entry, and not of a log's own record.
func (k Kind) IsEntry() bool { return k&kindBits < 8 || k&kindBits > 15 }

// Unknown is the error of Read for an entry that a newer release wrote.
type Unknown struct{ Kind Kind }

func (u Unknown) Error() string {
	return fmt.Sprintf("a newer release of pubsubd wrote an entry of kind %d, version %d, which this one does not know: start that release, or a newer one",
		u.Kind&kindBits, u.Kind&versionBits>>5)
}

// kinds has the kind of each operation.
var kinds = [...]Kind{
	broker.OpPublish: Publish,
	broker.OpDelete:  Delete,
	broker.OpLost:    Lost,
	broker.OpForget:  Forget,
	broker.OpEpoch:   Epoch,
	broker.OpTopic:   Topic,
	broker.OpKey:     Key,
}

// KindOf returns the kind of an operation.
func KindOf(op broker.Op) Kind { return kinds[op] }

// MaxOffset is the largest integer that every JSON reader keeps exactly.
const MaxOffset = 1<<53 - 1

// Append appends the body of an entry. The kind, and the epoch and the offset of the position,
// are not in it.
func Append(b []byte, e *broker.Entry) []byte {
	m := e.Message
	b = AppendField(b, m.Position.Topic)
	switch e.Op {
	case broker.OpPublish:
		flags := byte(0)
		if m.CBOR {
			flags |= flagCBOR
		}
		if e.Key != (broker.Key{}) {
			flags |= flagKey
		}
		if m.Claims != nil {
			flags |= flagClaims
		}
		b = append(b, flags)
		b = binary.AppendVarint(b, m.Time)
		b = binary.AppendVarint(b, e.TTL.Milliseconds())
		for _, field := range [...]string{m.Type, m.ID, m.Key, m.Client, m.By} {
			b = AppendField(b, field)
		}
		if m.Claims != nil {
			b = AppendField(b, m.Claims)
		}
		if flags&flagKey > 0 {
			b = append(append(b, e.Key.Scope[:]...), e.Key.Print[:]...)
		}
		b = append(b, m.Data...)
	case broker.OpLost, broker.OpForget, broker.OpEpoch, broker.OpTopic:
		s := e.State
		for _, n := range [...]uint64{uint64(s.Partition), s.Forgotten, s.Born, s.Lost} {
			b = binary.AppendUvarint(b, n)
		}
		b = AppendField(b, s.Reason)
	case broker.OpKey:
		b = binary.AppendVarint(b, m.Time)
		b = append(append(b, e.Key.Scope[:]...), e.Key.Print[:]...)
	}
	return b
}

// Flags of a publish.
const (
	flagCBOR = 1 << iota
	flagKey
	flagClaims
)

// AppendField appends a field with its length.
func AppendField[T ~string | ~[]byte](b []byte, field T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

// Read returns the entry of a kind and a body, at a position without its topic. It keeps nothing
// of the body. What a log says is not trusted: Read checks it as the daemon checks requests.
func Read(k Kind, body []byte, at wire.Position) (broker.Entry, error) {
	op := slices.Index(kinds[:], k&^Optional)
	if op < 0 {
		return broker.Entry{}, Unknown{k}
	}
	f, e := NewFields(body), broker.Entry{Op: broker.Op(op), Message: &wire.Message{Position: at}}
	e.Message.Position.Topic = f.Text()
	switch e.Op {
	case broker.OpPublish:
		f.message(&e)
	case broker.OpLost, broker.OpForget, broker.OpEpoch, broker.OpTopic:
		s := &broker.State{Partition: int(f.Uvarint()), Forgotten: f.Uvarint(), Born: f.Uvarint(), Lost: f.Uvarint()}
		s.Reason = wire.GapReason(f.Text())
		switch {
		case f.err != nil:
		case s.Partition != 0:
			f.fail(fmt.Errorf("it is of partition %d; the log has only partition 0", s.Partition))
		case s.Reason != "" && !slices.Contains(wire.GapReasons(), s.Reason):
			f.fail(fmt.Errorf("it has an unknown gap reason, %.40q", s.Reason))
		}
		e.State = s
	case broker.OpKey:
		e.Message.Time = f.varint()
		e.Key = f.key()
	}
	if err := f.End(); err != nil {
		return broker.Entry{}, err
	}
	return e, checkEntry(&e)
}

// message reads the message of a publish.
func (f *Fields) message(e *broker.Entry) {
	flags, m := f.Byte(), e.Message
	m.Time = f.varint()
	ttl := f.varint()
	m.Type, m.ID, m.Key, m.Client, m.By = f.Text(), f.Text(), f.Text(), f.Text(), f.Text()
	if flags&flagClaims > 0 {
		m.Claims = bytes.Clone(f.take(f.Uvarint()))
	}
	if flags&flagKey > 0 {
		e.Key = f.key()
	}
	m.CBOR = flags&flagCBOR > 0
	m.Data = append([]byte{}, f.take(uint64(len(f.body)))...)
	if f.err != nil {
		return
	}
	if err := checkMessage(m, ttl); err != nil {
		f.fail(err)
	}
	e.TTL = time.Duration(ttl) * time.Millisecond
}

func (f *Fields) key() (k broker.Key) {
	copy(k.Scope[:], f.take(uint64(len(k.Scope))))
	copy(k.Print[:], f.take(uint64(len(k.Print))))
	return k
}

// maxTTL is the longest life that a time.Duration holds, in milliseconds.
const maxTTL = math.MaxInt64 / int64(time.Millisecond)

// checkMessage checks a message, but for its position, and its life in milliseconds.
func checkMessage(m *wire.Message, ttl int64) error {
	switch {
	case m.Time < 0 || ttl < 0 || ttl > maxTTL:
		return errors.New("the message's time is not valid")
	case len(m.Type) > wire.MaxTypeBytes || len(m.Key) > wire.MaxKeyBytes || len(m.ID) > wire.MaxKeyBytes:
		return errors.New("the message's type, key or id is too long")
	case m.Client != "" && wire.CheckClient(m.Client) != nil:
		return wire.CheckClient(m.Client)
	case len(m.By) > wire.MaxByBytes || len(m.Claims) > wire.MaxClaimsBytes:
		return errors.New("the message's by is too long, or its claims are")
	case m.Claims != nil && (m.By == "" || !bytes.HasPrefix(m.Claims, []byte("{")) || !isCompactJSON(m.Claims)):
		return errors.New("the message's claims are not valid")
	case m.CBOR && m.Type != "":
		return errors.New("the message has JSON values, and a type")
	case m.CBOR:
		if model, err := cbor.Check(m.Data); err != nil || model != cbor.IsJSON {
			return errors.New("the message's data is not CBOR of JSON values")
		}
	case m.Type == "" && !isCompactJSON(m.Data):
		return errors.New("the message's data is not JSON")
	}
	return nil
}

// isCompactJSON reports whether data is JSON as wire.CompactJSON returns it, but a field may
// come twice: older daemons allowed that.
func isCompactJSON(data []byte) bool {
	compact, err := jsontext.AppendFormat(nil, data,
		jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	return err == nil && len(compact) == len(data) && utf8.Valid(data)
}

// checkEntry checks the position and the state of an entry.
func checkEntry(e *broker.Entry) error {
	at := e.Message.Position
	switch {
	case at.Offset > MaxOffset:
		return fmt.Errorf("its offset must be at most %d; got %d", uint64(MaxOffset), at.Offset)
	case e.Message.Time < 0:
		return errors.New("its time is before 1970")
	case e.Op == broker.OpEpoch && e.State.Born > e.State.Lost:
		return fmt.Errorf("its first loss, at %d, is after its last, at %d", e.State.Born, e.State.Lost)
	case e.Op == broker.OpEpoch && at.Topic == "":
		return nil
	case e.Op == broker.OpForget && e.State.Lost > at.Offset:
		return fmt.Errorf("it forgets the topic at offset %d, but the topic has one at %d", at.Offset, e.State.Lost)
	case e.Op == broker.OpTopic && (e.State.Born > at.Offset || e.State.Lost > at.Offset):
		return fmt.Errorf("its offsets contradict each other: born %d, lost %d, head %d", e.State.Born, e.State.Lost, at.Offset)
	case (e.Op == broker.OpTopic || e.Op == broker.OpLost) && e.State.Reason == "":
		return errors.New("it has no gap reason")
	}
	return wire.CheckTopic(at.Topic)
}
