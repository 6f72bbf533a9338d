package auth

import (
	"crypto/sha256"
	"sync"
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

// A cache remembers what the check of credentials found. All methods may be called concurrently.
//
// It has two generations. When the young one is full, it becomes the old one, and the old one
// is dropped. A hit in the old one moves the value to the young one. So what is in use stays,
// and nothing has to be searched to drop the rest.
type cache[V any] struct {
	most int // bytes of a generation; immutable

	mu              sync.Mutex // guards the fields below
	young, old      map[digest]cached[V]
	bytes, oldBytes int // of the generations
}

type cached[V any] struct {
	value V
	bytes int
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

// get returns what is remembered. The caller checks that what verified it is still trusted.
func (c *cache[V]) get(d *digest) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.young[*d] // Fast path: does not allocate
	if !ok {
		if found, ok = c.old[*d]; ok {
			delete(c.old, *d)
			c.oldBytes -= found.bytes
			c.addLocked(d, found)
		}
	}
	return found.value, ok
}

// put remembers a value, which counts as that many bytes.
func (c *cache[V]) put(d *digest, v V, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(d, cached[V]{v, bytes})
}

func (c *cache[V]) addLocked(d *digest, entry cached[V]) {
	if c.young == nil || c.bytes+entry.bytes > c.most {
		c.young, c.old = make(map[digest]cached[V]), c.young
		c.bytes, c.oldBytes = 0, c.bytes
	}
	if was, ok := c.young[*d]; ok { // two calls verified the same credential
		c.bytes -= was.bytes
	}
	c.young[*d] = entry
	c.bytes += entry.bytes
}

// held returns how many values are remembered, and their bytes.
func (c *cache[V]) held() (values, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old), c.bytes + c.oldBytes
}
