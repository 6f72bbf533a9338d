package broker

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Digest stands for the bytes that it was made of.
type Digest [sha256.Size]byte

// digestOf returns a digest of parts and of their lengths.
func digestOf(parts ...[]byte) (d Digest) {
	h := sha256.New()
	for _, part := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	h.Sum(d[:0])
	return d
}

// A Key is an idempotency key, of one owner for one topic, with the message that it was
// used for.
type Key struct {
	Scope Digest // the owner, the topic and the key
	Print Digest // everything else that the publisher stated
}

func keyOf(owner string, m *wire.Message, ttl time.Duration) Key {
	kind := m.Type // of the payload; the same bytes are other values in JSON and in CBOR
	if m.CBOR {
		kind = wire.CBORType
	}
	life := binary.BigEndian.AppendUint64(nil, uint64(ttl))
	return Key{digestOf([]byte(owner), []byte(m.Position.Topic), []byte(m.ID)), digestOf([]byte(kind), life, []byte(m.Key), []byte(m.Client), m.Data)}
}

var errReleased = errors.New("the publish was not sent")

// keys are the idempotency keys in use, with the results of their publishes.
//
// A key is under way from the beginning of its publish until that is applied or has
// failed; other publishes with the key wait meanwhile. A failed publish leaves nothing.
// Keys of applied publishes stay until the window has passed. When there are more than
// the limit, the oldest are dropped. All methods may be called concurrently.
type keys struct {
	metrics *metrics.Metrics // immutable
	local   string           // epoch of the messages that no log has; immutable

	mu      sync.Mutex // guards the fields below; taken last
	window  time.Duration
	limit   int
	byScope map[Digest]*usedKey
	inOrder []*usedKey // the applied ones, oldest first
	locals  int        // number of those of local messages
}

// A usedKey is under way until underWay is nil; then it is applied.
type usedKey struct {
	Key
	wire.Published
	underWay chan struct{} // closed at the end of the publish
}

func newKeys(cfg Config, m *metrics.Metrics, local string) *keys {
	return &keys{local: local, window: cfg.IdempotencyWindow, limit: cfg.IdempotencyKeys, metrics: m, byScope: make(map[Digest]*usedKey)}
}

// reload changes the window and the limit.
func (k *keys) reload(cfg Config) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.window, k.limit = cfg.IdempotencyWindow, cfg.IdempotencyKeys
	k.evictLocked()
}

// claim is Broker.Claim.
func (k *keys) claim(key Key, now time.Time) (Claim, Result, <-chan struct{}) {
	k.mu.Lock()
	known := k.byScope[key.Scope]
	if known == nil || known.underWay == nil && k.hasPassed(known, now) {
		defer k.mu.Unlock()
		known = &usedKey{Key: key, underWay: make(chan struct{})}
		k.byScope[key.Scope] = known
		return Claim{key, known}, Result{}, nil
	}
	found := *known
	k.mu.Unlock()
	if found.underWay != nil {
		return Claim{}, Result{}, found.underWay
	}
	return Claim{}, k.repeat(key, found), nil
}

// end ends the publish of a claim, and returns its result. If the key is still under way, the
// publish failed.
func (k *keys) end(c Claim, r Result) Result {
	k.mu.Lock()
	if c.used.underWay != nil {
		close(c.used.underWay)
		c.used.underWay = nil
		k.forgetLocked(c.used)
	}
	used := *c.used
	k.mu.Unlock()
	if r.Err == nil && used.Print != c.key.Print {
		return k.repeat(c.key, used) // the log had another publish with the key before
	}
	return r
}

// applied adds the key of a publish that was applied, unless it is known.
func (k *keys) applied(key Key, published wire.Published, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byScope[key.Scope]
	switch {
	case known != nil && known.underWay != nil:
		known.Print = key.Print
		close(known.underWay)
		known.underWay = nil
	case known != nil && !k.hasPassed(known, now):
		return
	default:
		known = &usedKey{Key: key, Published: published}
		if k.hasPassed(known, now) { // a log is applied again
			return
		}
		k.byScope[key.Scope] = known
	}
	known.Published = published
	k.inOrder = append(k.inOrder, known)
	if k.isLocal(known) {
		k.locals++
	}
	k.evictLocked()
}

// repeat returns the result of an earlier publish.
func (k *keys) repeat(key Key, found usedKey) Result {
	if key.Print != found.Print {
		k.metrics.IdempotencyMismatched.Inc()
		return Result{Err: problem.New(wire.CodeIdempotencyMismatch, "use a new key for each message",
			"the idempotency key was already used for another message of this topic, %s", found.Position)}
	}
	k.metrics.IdempotencyRepeated.Inc()
	return Result{Published: found.Published}
}

// evictLocked drops the oldest keys above the limit.
func (k *keys) evictLocked() {
	for len(k.inOrder) > k.limit {
		k.dropLocked()
		k.metrics.IdempotencyEvicted.Inc()
	}
}

// dropLocked drops the oldest key.
func (k *keys) dropLocked() {
	oldest := k.inOrder[0]
	k.inOrder[0], k.inOrder = nil, k.inOrder[1:]
	if k.isLocal(oldest) {
		k.locals--
	}
	k.forgetLocked(oldest)
}

// forgetLocked removes u from byScope, unless a newer use of the same key replaced it.
func (k *keys) forgetLocked(u *usedKey) {
	if k.byScope[u.Scope] == u {
		delete(k.byScope, u.Scope)
	}
}

func (k *keys) hasPassed(u *usedKey, now time.Time) bool {
	return now.UnixMilli()-u.Time >= k.window.Milliseconds()
}

// sweepTurn is how many keys are dropped before publishes may continue.
const sweepTurn = 1000

// sweep drops the keys whose window has passed.
func (k *keys) sweep(now time.Time) {
	for dropped := sweepTurn; dropped == sweepTurn; {
		k.mu.Lock()
		for dropped = 0; dropped < sweepTurn && len(k.inOrder) > 0 && k.hasPassed(k.inOrder[0], now); dropped++ {
			k.dropLocked()
		}
		k.mu.Unlock()
	}
}

// forgetEpoch drops the keys of messages of an epoch that is over. The log repeats them
// in the new epoch, or has lost them.
func (k *keys) forgetEpoch(epoch string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inOrder = slices.DeleteFunc(k.inOrder, func(u *usedKey) bool {
		over := u.Position.Epoch == epoch
		if over {
			k.forgetLocked(u)
		}
		return over
	})
}

// isLocal reports whether the message of an applied key is in no log.
func (k *keys) isLocal(u *usedKey) bool { return u.Position.Epoch == k.local }

// logged returns copies of the applied keys, the oldest first, without the local ones.
func (k *keys) logged() []usedKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	logged := make([]usedKey, 0, len(k.inOrder)-k.locals)
	for _, u := range k.inOrder {
		if !k.isLocal(u) {
			logged = append(logged, *u)
		}
	}
	return logged
}

// countLogged returns the number of keys that logged returns.
func (k *keys) countLogged() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.inOrder) - k.locals
}

func (k *keys) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.inOrder)
}
