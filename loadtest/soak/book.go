package soak

import (
	"maps"
	"slices"
	"sort"
	"time"
)

// A book is a numbering that is closed: what the judge reads. It is immutable.
type book struct {
	offsets []uint64   // rising
	ids     []identity // of each offset
	times   []int32    // of each offset
	latest  []int32    // the highest of times up to there
	held    []int64    // the sum of what all before count for in a history; one longer
	ttls    []int32    // milliseconds, 0 for none
}

// close returns the topic's books by epoch.
func (l *ledger) close(topic int) map[epochIndex]*book {
	t := &l.topics[topic]
	t.mu.Lock()
	defer t.mu.Unlock()
	books := make(map[epochIndex]*book, len(t.numberings))
	for e, n := range t.numberings {
		books[e] = n.close(l.payloads)
	}
	return books
}

func (n *numbering) close(p *payloads) *book {
	b := &book{held: []int64{0}}
	for _, c := range slices.Sorted(maps.Keys(n.chunks)) {
		for i, e := range n.chunks[c] {
			if e.set {
				b.add(c*chunkEntries+uint64(i), e, p.formOf(e.id))
			}
		}
	}
	return b
}

func (b *book) add(offset uint64, e entry, f form) {
	latest := e.time
	if len(b.latest) > 0 {
		latest = max(latest, b.latest[len(b.latest)-1])
	}
	b.offsets = append(b.offsets, offset)
	b.ids = append(b.ids, e.id)
	b.times = append(b.times, e.time)
	b.latest = append(b.latest, latest)
	b.held = append(b.held, b.held[len(b.held)-1]+int64(f.held()))
	b.ttls = append(b.ttls, int32(f.ttl/time.Millisecond))
}

// between returns which messages lie above after, up to and including upTo: those
// from index i and before j.
func (b *book) between(after, upTo uint64) (i, j int) {
	if b == nil {
		return 0, 0
	}
	i = sort.Search(len(b.offsets), func(k int) bool { return b.offsets[k] > after })
	j = sort.Search(len(b.offsets), func(k int) bool { return b.offsets[k] > upTo })
	return i, max(i, j)
}

// missing returns how many messages lie above after, up to and including upTo, that
// are not of the publisher own, and the index of the first.
func (b *book) missing(after, upTo uint64, own int) (first, n int) {
	i, j := b.between(after, upTo)
	for k := j - 1; k >= i; k-- {
		if b.ids[k].publisher() != own {
			first, n = k, n+1
		}
	}
	return first, n
}

// newestAt returns the index of the newest message taken up to then, or -1.
func (b *book) newestAt(then int32) int {
	return sort.Search(len(b.latest), func(k int) bool { return b.latest[k] > then }) - 1
}
