package auth

import (
	"crypto/sha256"
	"time"
	"unsafe"
)

// A digest is the SHA-256 of a credential. It stands for the credential wherever that is
// remembered.
type digest [sha256.Size]byte

// digestOf returns the digest of a secret. It does not allocate.
func digestOf(secret string) digest {
	return sha256.Sum256(unsafe.Slice(unsafe.StringData(secret), len(secret)))
}

// A pastRefusal is why a token was refused, and when. A client that repeats a token causes no second
// check of its signature.
type pastRefusal struct {
	*refusal
	at time.Time
}

// refusedFor is how long a refusal is remembered: not long, because its text may have a duration.
const refusedFor = 10 * time.Second

// Bounds of the caches. They do not count against memory.budget: those of grants together take at
// most 34 MiB, which operators see in a metric.
const (
	tokensBytes       = 16 << 20 // of each generation: about 20,000 usual tokens
	certificatesBytes = 1 << 20  // of each generation
	refusalsBytes     = 1 << 20  // of each generation

	refusalBytes = 256 // of an entry in the maps and of its problem

	cachedOverhead = 480 // of an entry in the maps and of its grant
	entryOverhead  = 64  // of an entry of rights
	textOverhead   = 32  // of a name or a right
)

// size returns about how many bytes the grant takes in a cache, at least what it does take.
func (g *Grant) size() int {
	n := cachedOverhead + len(g.Subject) + len(g.TokenID) + len(g.Claims)
	for _, e := range g.Rights.entries {
		n += entryOverhead
		for _, name := range e.topics {
			n += textOverhead + len(name)
		}
		for _, right := range e.allow {
			n += 2*textOverhead + len(right)
		}
	}
	return n
}
