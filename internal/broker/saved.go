package broker

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// What Save writes and Restore reads is lines of JSON, so that neither ever holds
// more of it than a line:
//
//	{"pubsubd_state":1,"epoch":"k3","floor":17,"saved":1700000000000}
//	{"topic":{"name":"a.b","head":19,"lost":16,"reason":"evicted"}}
//	{"message":{"offset":17,"time":1700000000000,"data":"MQ=="}}
//	{"message":{"offset":18,"time":1700000000001,"ttl_ms":1000,"type":"text/plain","data":"dHdv","key":"k"}}
//	{"message":{"offset":19,"time":1700000000001,"cbor":"AQ=="}}
//	{"result":{"scope":"…","fingerprint":"…","position":"a.b@k3:18","time":1700000000001}}
//	{"end":{"lines":6,"sha256":"…"}}
//
// A message belongs to the topic before it. A result is of an idempotency key, the
// oldest first. The end counts the lines above it and
// has their SHA-256, line ends included. Whatever else there will be is another
// kind of line: a member of savedLine, a writer in Save, and a case in
// restoring.take. A change of what is here is another stateVersion.

// stateVersion is that of the format.
const stateVersion = 1

// savedHead is the first line.
type savedHead struct {
	Version int    `json:"pubsubd_state"`
	Epoch   string `json:"epoch"`
	Floor   uint64 `json:"floor"`
	Saved   int64  `json:"saved"` // Unix milliseconds; for people

	// Forgotten is how many topics were forgotten with messages.
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

// savedMessage is a wire.Message whose topic and epoch are said above it.
type savedMessage struct {
	Offset uint64 `json:"offset"`
	Time   int64  `json:"time"`
	TTL    int64  `json:"ttl_ms,omitempty"`
	Type   string `json:"type,omitempty"`
	Data   []byte `json:"data,omitempty"` // in base64: every byte counts
	CBOR   []byte `json:"cbor,omitempty"` // the data, if wire.Message.CBOR; a daemon that does not know it misses data
	ID     string `json:"id,omitempty"`
	Key    string `json:"key,omitempty"`
	Client string `json:"client,omitempty"`
}

// savedResult is a Result.
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

// endOf is the last line, after those that were counted and summed up.
func endOf(lines int, sum hash.Hash) savedLine {
	return savedLine{End: &savedEnd{Lines: lines, SHA256: hex.EncodeToString(sum.Sum(nil))}}
}

// maxOffset is the largest integer that every JSON reader keeps exactly.
const maxOffset = 1<<53 - 1

// maxSavedLine bounds a line: the largest message there may be, in base64, and
// what is said of it.
const maxSavedLine = 16 << 20

func (h *savedHead) check() error {
	if h.Version != stateVersion {
		return fmt.Errorf("it is of version %d of the format, and this daemon reads version %d", h.Version, stateVersion)
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

// message returns what was saved of a message, at its position.
func (m *savedMessage) message(at wire.Position) *wire.Message {
	restored := &wire.Message{
		Position: at, Time: m.Time, Type: m.Type, Data: m.Data, ID: m.ID, Key: m.Key, Client: m.Client,
	}
	if m.CBOR != nil {
		restored.Data, restored.CBOR = m.CBOR, true
	}
	return restored
}

func (r *savedResult) check(epoch string) error {
	if len(r.Scope) != len(Digest{}) || len(r.Fingerprint) != len(Digest{}) || r.Time < 0 || r.Position.Epoch != epoch {
		return errors.New("the idempotency key's result is none")
	}
	return nil
}

// savable reports whether what a publisher said of m survives: JSON has no
// string that is not UTF-8.
func savable(m *wire.Message) bool {
	return utf8.ValidString(m.Type) && utf8.ValidString(m.Key) && utf8.ValidString(m.ID)
}
