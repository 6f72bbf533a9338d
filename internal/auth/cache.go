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
	mu         sync.Mutex // guards the fields below
	young, old map[digest]cached
	bytes      int    // of the young generation
	version    uint64 // counts clear
}

type cached struct {
	grant *Grant
	bytes int
}

// Bounds of a cache.
const (
	// generationBytes bounds the texts of the credentials in each generation, which bound the
	// grants: 16 MiB are about 20,000 usual tokens.
	generationBytes = 16 << 20

	// cachedOverhead is what an entry takes besides what grows with its credential.
	cachedOverhead = 400
)

// get returns a remembered grant, or nil. Without one, version is for put.
func (c *cache) get(d *digest) (g *Grant, version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.young[*d]; ok { // Fast path: does not allocate
		return found.grant, 0
	}
	if found, ok := c.old[*d]; ok {
		delete(c.old, *d)
		c.addLocked(d, found)
		return found.grant, 0
	}
	return nil, c.version
}

// put remembers the grant of a credential of so many bytes, unless the cache was cleared since
// get: then what verified the credential may not be valid any more.
func (c *cache) put(d *digest, version uint64, g *Grant, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version == c.version {
		c.addLocked(d, cached{g, bytes + cachedOverhead})
	}
}

func (c *cache) addLocked(d *digest, entry cached) {
	if c.young == nil || c.bytes+entry.bytes > generationBytes {
		c.young, c.old, c.bytes = make(map[digest]cached), c.young, 0
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
	c.young, c.old, c.bytes = nil, nil, 0
	c.version++
}

// len returns how many grants are remembered.
func (c *cache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old)
}
