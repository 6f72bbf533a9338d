package broker

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// PublishOnce is Publish for a message whose ID is an idempotency key of owner's: if
// one with that key was published to the topic within the window, it returns that
// one's result. While one is being published it waits for its end, at most until ctx
// ends, and then returns ctx's error. The error is otherwise Publish's, or a
// *wire.Problem: idempotency_mismatch.
func (b *Broker) PublishOnce(ctx context.Context, owner string, m *wire.Message, ttl time.Duration, now time.Time) (wire.Published, error) {
	return b.Once(untilDone(ctx), owner, m, ttl, now, func() (wire.Published, error) { return b.Publish(m, ttl, now) })
}

// Await waits until a channel is closed; an error says why it does not.
type Await func(over <-chan struct{}) error

func untilDone(ctx context.Context) Await {
	return func(over <-chan struct{}) error {
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Once is PublishOnce where publish, which is called if there is no result yet, does
// the publishing. It may take its time, and change m: a key stands for m and ttl as
// they are given. await waits for another that is under way, and may be called again.
func (b *Broker) Once(await Await, owner string, m *wire.Message, ttl time.Duration, now time.Time, publish func() (wire.Published, error)) (wire.Published, error) {
	asked := Result{Scope: scopeOf(owner, m.Position.Topic, m.ID), Fingerprint: fingerprintOf(m, ttl)}
	return b.results.do(await, asked, now, publish)
}

// IsUnderWay reports whether PublishOnce would wait now, for who publishes to the topic
// with the same key of owner's.
func (b *Broker) IsUnderWay(owner, topic, key string) bool {
	return b.results.isUnderWay(scopeOf(owner, topic, key))
}

// Results returns what publishes with idempotency keys were answered with.
func (b *Broker) Results() *Results { return b.results }

// A Digest stands for what it was made of.
type Digest [sha256.Size]byte

// digestOf is a digest of parts. Their lengths are in it: other parts, other bytes.
func digestOf(parts ...[]byte) (d Digest) {
	h := sha256.New()
	for _, part := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	h.Sum(d[:0])
	return d
}

// scopeOf stands for within what a key must be another for another message.
func scopeOf(owner, topic, key string) Digest {
	return digestOf([]byte(owner), []byte(topic), []byte(key))
}

// fingerprintOf stands for everything else that a publisher says.
func fingerprintOf(m *wire.Message, ttl time.Duration) Digest {
	life := binary.BigEndian.AppendUint64(nil, uint64(ttl))
	return digestOf([]byte(typeOf(m)), life, []byte(m.Key), []byte(m.Client), m.Data)
}

// typeOf tells JSON from JSON that came in CBOR: the same bytes are other values.
func typeOf(m *wire.Message) string {
	if m.CBOR {
		return wire.CBORType
	}
	return m.Type
}

// A Result is what a publish with an idempotency key was answered with. It is over
// when the window has passed since Published.Time.
type Result struct {
	Scope       Digest // whose key it is, of which topic
	Fingerprint Digest // of the message
	Published   wire.Published
}
