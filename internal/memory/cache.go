package memory

import "sync"

// A Cache remembers values of a bounded size. All methods may be called concurrently.
//
// It has two generations. When the young one is full, it becomes the old one, and the old one
// is dropped. A hit in the old one moves the value to the young one. So what is in use stays,
// and nothing has to be searched to drop the rest.
type Cache[K comparable, V any] struct {
	Most int // size of a generation: the sum of those of its values; immutable

	mu            sync.Mutex // guards the fields below
	young, old    map[K]cached[V]
	size, oldSize int // of the generations
}

type cached[V any] struct {
	value V
	size  int
}

// Get returns what is remembered. It does not allocate for a value of the young generation.
func (c *Cache[K, V]) Get(k K) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.young[k]
	if !ok {
		if found, ok = c.old[k]; ok {
			delete(c.old, k)
			c.oldSize -= found.size
			c.addLocked(k, found)
		}
	}
	return found.value, ok
}

// Put remembers a value of that size.
func (c *Cache[K, V]) Put(k K, v V, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(k, cached[V]{v, size})
}

func (c *Cache[K, V]) addLocked(k K, entry cached[V]) {
	if c.young == nil || c.size+entry.size > c.Most {
		c.young, c.old = make(map[K]cached[V]), c.young
		c.size, c.oldSize = 0, c.size
	}
	if was, ok := c.young[k]; ok { // two callers found the same
		c.size -= was.size
	}
	c.young[k] = entry
	c.size += entry.size
}

// Held returns how many values are remembered, and their size.
func (c *Cache[K, V]) Held() (values, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old), c.size + c.oldSize
}
