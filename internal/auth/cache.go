package auth

import (
	"crypto/sha256"
	"sync"
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
	bytes, oldBytes int    // of the generations
	version         uint64 // counts clear
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

	cachedOverhead = 450 // of an entry in the maps and of its grant
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

// get returns a remembered grant, or nil. Without one, version is for put.
func (c *cache) get(d *digest) (g *Grant, version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.young[*d]; ok { // Fast path: does not allocate
		return found.grant, 0
	}
	if found, ok := c.old[*d]; ok {
		delete(c.old, *d)
		c.oldBytes -= found.bytes
		c.addLocked(d, found)
		return found.grant, 0
	}
	return nil, c.version
}

// put remembers the grant of a credential, unless the cache was cleared since get: then what
// verified the credential may not be valid any more.
func (c *cache) put(d *digest, version uint64, g *Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version == c.version {
		c.addLocked(d, cached{g, g.size()})
	}
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

// clear forgets everything.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.young, c.old, c.bytes, c.oldBytes = nil, nil, 0, 0
	c.version++
}

// held returns how many grants are remembered, and their bytes.
func (c *cache) held() (grants, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old), c.bytes + c.oldBytes
}
