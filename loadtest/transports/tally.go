package transports

import "fmt"

// A tally accounts for the messages that one client is sent: those of the offsets
// after begin, as many as are wanted, each with a sequence of its own. It belongs
// to the client's goroutine.
type tally struct {
	begin  uint64 // offset of the message before the first
	wanted int

	had       int      // different messages
	frames    uint64   // messages, duplicates too
	newest    int      // highest place had; 0 before the first
	offsets   []uint64 // a bit for each that was had
	sequences []uint64

	duplicates, disordered, gaps int64
}

func newTally(begin uint64, wanted int) *tally {
	words := wanted/64 + 1
	return &tally{begin: begin, wanted: wanted, offsets: make([]uint64, words), sequences: make([]uint64, words)}
}

// complete reports whether all were had.
func (t *tally) complete() bool { return t.had == t.wanted }

// lost is how many were not.
func (t *tally) lost() int64 { return int64(t.wanted - t.had) }

func (t *tally) message(m seen) error {
	place := m.offset - t.begin // from 1
	if m.offset <= t.begin || place > uint64(t.wanted) || m.sequence >= t.wanted {
		return fmt.Errorf("message %d at offset %d was not published in this test", m.sequence, m.offset)
	}
	t.frames++
	at := int(place)
	if !set(t.offsets, at-1) {
		t.duplicates++
		return nil
	}
	if !set(t.sequences, m.sequence) {
		return fmt.Errorf("message %d arrived again at offset %d", m.sequence, m.offset)
	}
	t.had++
	if at < t.newest {
		t.disordered++
	}
	t.newest = max(t.newest, at)
	return nil
}

// set sets a bit, and reports whether it was not set.
func set(bits []uint64, i int) bool {
	word, bit := &bits[i/64], uint64(1)<<(i%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
