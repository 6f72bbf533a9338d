package lane

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"
)

// blocks remembers blocks of header fields that were read, so that the clients of
// one browser or one proxy share what their requests have in common: five
// thousand connections hold one block, not five thousand. A block is found by its
// hash and compared byte by byte, so a collision costs time, never truth; a
// newer one takes an older one's place, so the memory is bounded (by places
// times the largest head, 2 MiB).
type blocks struct {
	seed   maphash.Seed
	places [256]atomic.Pointer[fields]
}

func newBlocks() *blocks { return &blocks{seed: maphash.MakeSeed()} }

func (b *blocks) place(block []byte) *atomic.Pointer[fields] {
	return &b.places[maphash.Bytes(b.seed, block)%uint64(len(b.places))]
}

// get returns what was read of the very same block, or nil.
func (b *blocks) get(block []byte) *fields {
	if f := b.place(block).Load(); f != nil && bytes.Equal(f.block, block) {
		return f
	}
	return nil
}

func (b *blocks) put(f *fields) { b.place(f.block).Store(f) }
