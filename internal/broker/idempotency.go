package broker

import (
	"context"
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
	return Key{scopeOf(owner, m.Position.Topic, m.ID), digestOf([]byte(kind), life, []byte(m.Key), []byte(m.Client), m.Data)}
}

func scopeOf(owner, topic, key string) Digest {
	return digestOf([]byte(owner), []byte(topic), []byte(key))
}

// An Await waits until a channel is closed, or returns why it does not wait.
type Await func(over <-chan struct{}) error

// UntilDone returns an Await that waits at most until ctx ends.
func UntilDone(ctx context.Context) Await {
	return func(over <-chan struct{}) error {
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// PublishOnce is Publish for a message whose ID is an idempotency key of an owner. If a
// message with that key was published to the topic within the window, it returns the
// earlier result. While another publish with the key is under way, it waits, at most
// until ctx ends. The error is that of ctx or of Publish, or a *wire.Problem:
// idempotency_mismatch.
func (b *Broker) PublishOnce(ctx context.Context, owner string, m *wire.Message, ttl time.Duration, now time.Time) (wire.Published, error) {
	return b.Once(UntilDone(ctx), owner, m, ttl, now, func(k Key) (wire.Published, error) { return b.PublishBy(Route{}, k, m, ttl, now) })
}

// Once is PublishOnce with the caller's own publish, which ends in PublishBy. It is called
// unless there is an earlier result. It may take long, and may change m: the key stands
// for m and ttl as Once got them. await waits for another publish, and may be called
// several times.
func (b *Broker) Once(await Await, owner string, m *wire.Message, ttl time.Duration, now time.Time, publish func(Key) (wire.Published, error)) (wire.Published, error) {
	return b.keys.do(await, keyOf(owner, m, ttl), now, publish)
}

// IsUnderWay reports whether Once would wait now for another publish with the same key.
func (b *Broker) IsUnderWay(owner, topic, key string) bool {
	b.keys.mu.Lock()
	defer b.keys.mu.Unlock()
	known := b.keys.byScope[scopeOf(owner, topic, key)]
	return known != nil && known.underWay != nil
}

// keys are the idempotency keys in use, with the results of their publishes.
//
// A key is under way from the beginning of its publish until that is applied or has
// failed; other publishes with the key wait meanwhile. A failed publish leaves nothing.
// Keys of applied publishes stay until the window has passed. When there are more than
// the limit, the oldest are dropped. All methods may be called concurrently.
type keys struct {
	metrics *metrics.Metrics // immutable

	mu      sync.Mutex // guards the fields below; taken last
	window  time.Duration
	limit   int
	byScope map[Digest]*usedKey
	inOrder []*usedKey // the applied ones, oldest first
}

// A usedKey is under way until underWay is nil; then it is applied.
type usedKey struct {
	Key
	wire.Published
	underWay chan struct{} // closed at the end of the publish
}

func newKeys(cfg Config, m *metrics.Metrics) *keys {
	return &keys{window: cfg.IdempotencyWindow, limit: cfg.IdempotencyKeys, metrics: m, byScope: make(map[Digest]*usedKey)}
}

// reload changes the window and the limit.
func (k *keys) reload(cfg Config) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.window, k.limit = cfg.IdempotencyWindow, cfg.IdempotencyKeys
	k.evictLocked()
}

// do returns what publish returns, or the result of an earlier publish with the key.
func (k *keys) do(await Await, key Key, now time.Time, publish func(Key) (wire.Published, error)) (wire.Published, error) {
	for {
		mine, found := k.begin(key, now)
		switch {
		case mine != nil:
			return k.publish(mine, key, publish)
		case found.underWay == nil:
			return k.repeat(key, found)
		}
		if err := await(found.underWay); err != nil {
			return wire.Published{}, err
		}
	}
}

// begin returns a key that is now under way, or the one found.
func (k *keys) begin(key Key, now time.Time) (mine *usedKey, found usedKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byScope[key.Scope]
	if known == nil || known.underWay == nil && k.hasPassed(known, now) {
		mine = &usedKey{Key: key, underWay: make(chan struct{})}
		k.byScope[key.Scope] = mine
		return mine, usedKey{}
	}
	return nil, *known
}

func (k *keys) publish(mine *usedKey, key Key, publish func(Key) (wire.Published, error)) (published wire.Published, err error) {
	defer func() { // also if publish panics
		if !errors.Is(err, ErrPending) { // else Commit ends it
			published, err = k.end(mine, key, published, err)
		}
	}()
	return publish(key)
}

// underWay returns the key that is under way for a scope.
func (k *keys) underWay(scope Digest) *usedKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.byScope[scope]
}

// end ends a publish with a key, and returns its result. If the key is still under way, the
// publish failed.
func (k *keys) end(mine *usedKey, key Key, published wire.Published, err error) (wire.Published, error) {
	k.mu.Lock()
	if mine.underWay != nil {
		close(mine.underWay)
		mine.underWay = nil
		k.forgetLocked(mine)
	}
	used := *mine
	k.mu.Unlock()
	if err == nil && used.Print != key.Print {
		return k.repeat(key, used) // the log had another publish with the key before
	}
	return published, err
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
	k.evictLocked()
}

// repeat returns the result of an earlier publish.
func (k *keys) repeat(key Key, found usedKey) (wire.Published, error) {
	if key.Print != found.Print {
		k.metrics.IdempotencyMismatched.Inc()
		return wire.Published{}, problem.New(wire.CodeIdempotencyMismatch, "use a new key for each message",
			"the idempotency key was already used for another message of this topic, %s", found.Position)
	}
	k.metrics.IdempotencyRepeated.Inc()
	return found.Published, nil
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

// all returns copies of the applied keys, the oldest first.
func (k *keys) all() []usedKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]usedKey, 0, len(k.inOrder))
	for _, u := range k.inOrder {
		all = append(all, *u)
	}
	return all
}

func (k *keys) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.inOrder)
}
