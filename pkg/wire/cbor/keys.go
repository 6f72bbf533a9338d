package cbor

import (
	"bytes"
	"slices"
)

// mapKeys are the keys of the maps that are being read, those of the innermost map last.
// The zero value has none.
type mapKeys [][]byte

// close removes the keys of the innermost map, which begin at the given index, and reports
// whether they are all different. It sorts them: a hash could be attacked, and a set would
// allocate.
func (k *mapKeys) close(from int) bool {
	keys := (*k)[from:]
	*k = (*k)[:from]
	slices.SortFunc(keys, bytes.Compare)
	for i := range len(keys) - 1 {
		if bytes.Equal(keys[i], keys[i+1]) {
			return false
		}
	}
	return true
}

// maxSpareKeys is how many keys a reader keeps memory for.
const maxSpareKeys = 256

// emptied returns k without keys and without much memory. It clears the memory, so that a
// pooled reader does not keep an item alive.
func (k mapKeys) emptied() mapKeys {
	if cap(k) > maxSpareKeys {
		return nil
	}
	clear(k[:cap(k)])
	return k[:0]
}
