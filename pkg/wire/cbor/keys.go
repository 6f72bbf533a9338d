package cbor

import (
	"bytes"
	"slices"
)

// mapKeys are the keys of the objects or maps that are being read, those of the
// innermost last. The zero value has none.
type mapKeys [][]byte

// fewKeys is how many are compared each with each.
const fewKeys = 8

// shut ends the innermost object, whose keys are those from the given one, and
// reports whether no two of them are the same.
func (k *mapKeys) shut(from int) bool {
	keys := (*k)[from:]
	*k = (*k)[:from]
	if len(keys) <= fewKeys {
		return distinct(keys)
	}
	// No hash to be guessed, and no memory: comparing takes each byte as often
	// as there are halves.
	slices.SortFunc(keys, bytes.Compare)
	for i := range keys[1:] {
		if bytes.Equal(keys[i], keys[i+1]) {
			return false
		}
	}
	return true
}

func distinct(keys [][]byte) bool {
	for i, key := range keys {
		for _, other := range keys[:i] {
			if bytes.Equal(key, other) {
				return false
			}
		}
	}
	return true
}

// keptKeys is how many keys a reader keeps room for.
const keptKeys = 256

// emptied returns k without keys, and without much memory: a reader that is used
// again holds on to nothing that it read.
func (k mapKeys) emptied() mapKeys {
	if cap(k) > keptKeys {
		return nil
	}
	clear(k[:cap(k)])
	return k[:0]
}
