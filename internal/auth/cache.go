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

// A cache remembers the grants of verified credentials. All methods may be called
// concurrently.
//
// It has two generations. When the young one is full, it becomes the old one, and the old one
// is dropped. A hit in the old one moves the grant to the young one. So what is in use stays,
// and nothing has to be searched to drop the rest.
type cache struct {
	most int // bytes of a generation; immutable

	mu              sync.Mutex // guards the fields below
	young, old      map[digest]cached
	bytes, oldBytes int // of the generations
}

type cached struct {
	grant *Grant
	bytes int
}

// Bounds of the caches. They do not count against memory.budget: together they take at most 34
// MiB, which operators see in a metric.
const (
	tokensBytes       = 16 << 20 // of each generation: about 20,000 usual tokens
	certificatesBytes = 1 << 20  // of each generation

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

// get returns a remembered grant, or nil. The caller checks that what verified it is still
// trusted.
func (c *cache) get(d *digest) *Grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.young[*d]; ok { // Fast path: does not allocate
		return found.grant
	}
	if found, ok := c.old[*d]; ok {
		delete(c.old, *d)
		c.oldBytes -= found.bytes
		c.addLocked(d, found)
		return found.grant
	}
	return nil
}

// put remembers the grant of a credential.
func (c *cache) put(d *digest, g *Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(d, cached{g, g.size()})
}

func (c *cache) addLocked(d *digest, entry cached) {
	if c.young == nil || c.bytes+entry.bytes > c.most {
		c.young, c.old = make(map[digest]cached), c.young
		c.bytes, c.oldBytes = 0, c.bytes
	}
	if was, ok := c.young[*d]; ok { // two calls verified the same credential
		c.bytes -= was.bytes
	}
	c.young[*d] = entry
	c.bytes += entry.bytes
}

// held returns how many grants are remembered, and their bytes.
func (c *cache) held() (grants, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old), c.bytes + c.oldBytes
}

// refusals remember tokens that were refused, so that a client that repeats one causes no
// second check of its signature. The zero value is empty. All methods may be called
// concurrently.
type refusals struct {
	mu         sync.Mutex // guards the fields below
	young, old map[digest]*refusal
	turned     time.Time // when the young ones were last made the old ones
}

const (
	// refusedFor is how long a refusal is remembered at least, unless there are too many, and half
	// of how long at most.
	refusedFor = 10 * time.Second

	// refusalsKept bounds the refusals of a generation: about 1 MB.
	refusalsKept = 4096
)

// get returns why a token was refused, or nil if that is not remembered.
func (r *refusals) get(d *digest, now time.Time) *refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := now.Sub(r.turned); age >= refusedFor {
		if r.old, r.young, r.turned = r.young, nil, now; age >= 2*refusedFor {
			r.old = nil
		}
	}
	if why := r.young[*d]; why != nil {
		return why
	}
	return r.old[*d]
}

// put remembers why a token was refused.
func (r *refusals) put(d *digest, why *refusal, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.young) >= refusalsKept {
		r.old, r.young, r.turned = r.young, nil, now
	}
	if r.young == nil {
		r.young = make(map[digest]*refusal)
	}
	r.young[*d] = why
}
