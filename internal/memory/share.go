package memory

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Unfinished and unread bytes each have a share of the budget, of which one address may
// have half.

// share returns the share of unfinished bytes, and that of unread ones.
func (a *Account) share() int64 { return max(a.budget.Load()/4, minShare) }

// minShare is the least share: a few answers.
const minShare = 1 << 20

// A Client counts the unfinished and unread bytes of one address. It may be used
// concurrently.
type Client struct{ unfinished, unread atomic.Int64 }

// Holds reports whether bytes count against the client.
func (c *Client) Holds() bool { return c.unfinished.Load() > 0 || c.unread.Load() > 0 }

// A Holder of bytes is a request or a connection.
type Holder interface {
	// Client returns the client against which new bytes count; nil: none. The goroutine
	// that calls Set calls it.
	Client() *Client
}

// A holding is the bytes of one holder in one share.
type holding struct {
	client *Client // of the bytes now; nil: none
	bytes  atomic.Int64
}

// set counts so many bytes. It returns by how many they grew, and how many the client
// has.
func (h *holding) set(a *Account, k Kind, bytes int64) (more, its int64) {
	more = bytes - h.bytes.Swap(bytes)
	a.Add(k, more)
	switch {
	case h.client == nil:
	case k == Unread:
		its = h.client.unread.Add(more)
	default:
		its = h.client.unfinished.Add(more)
	}
	return more, its
}

// freeBytes is how much of each body is not counted. A connection uses as much anyway, and
// most messages are smaller: large bodies that fill the share must not keep small ones
// out.
const freeBytes = 16 << 10

// UnfinishedBytes counts one body or command that is not complete: a client with many
// connections could fill the memory with them. It belongs to one goroutine at a time. The
// zero value counts nothing.
type UnfinishedBytes struct{ holding }

// Set sets how many bytes of a holder there are now; 0 ends the count. The error, a
// *wire.Problem, refuses the bytes, which count nevertheless.
func (u *UnfinishedBytes) Set(a *Account, bytes int64, of Holder) error {
	bytes = max(0, bytes-freeBytes)
	switch u.bytes.Load() {
	case bytes:
		return nil
	case 0:
		u.client = of.Client()
	}
	more, its := u.set(a, Unfinished, bytes)
	most := max(a.share(), 5*a.largest.Load())
	switch {
	case more < 0 || a.Of(Unfinished) <= most && its <= most/2:
		return nil
	case a.Of(Unfinished) <= most:
		return a.refuse(wire.CodeLimited, "send fewer large bodies at a time; if clients share a proxy's address, add it to trusted_proxies",
			"your address has reached its limit of bytes in unfinished large bodies")
	}
	return a.refuse(wire.CodeOverloaded, moreMemory, "the daemon has no memory for another large body now")
}

const moreMemory = "retry later, or give the daemon more memory (memory.budget)"

// SetLargestBody sets how large a body may be. A few of them always fit the share.
func (a *Account) SetLargestBody(bytes int) { a.largest.Store(int64(bytes)) }

// SmallWrite is how many bytes of a write may block without being counted: each connection
// has buffers as large.
const SmallWrite = 4 << 10

// stalledAfter is how long a client takes no byte before it counts as stalled.
const stalledAfter = time.Second

// An Owner of unread bytes is a connection, or an answer on one.
type Owner interface {
	Holder

	// CutOff ends the connection, and counts its client as a slow reader. It does not wait,
	// and any goroutine may call it, also after the end.
	CutOff()
}

// UnreadBytes counts the bytes that wait for one client. One goroutine at a time calls
// Set whenever their number changes.
//
// Bytes are the client's own, or shared: those of a message that is sent to many. Shared
// bytes count once, with their message. Here they only show which clients are slow.
type UnreadBytes struct {
	account *Account // immutable, like owner
	owner   Owner

	holding      // own bytes
	waits   bool // some bytes wait
	shared  atomic.Int64
	since   atomic.Int64 // Unix nanoseconds; when the client last took bytes, or some began to wait
	cut     atomic.Bool
}

// Init makes u count the bytes of an owner in a. It is called before anything else.
func (u *UnreadBytes) Init(a *Account, owner Owner) { u.account, u.owner = a, owner }

// Set sets how many bytes wait now. While none wait, and none waited before, it is cheap.
func (u *UnreadBytes) Set(own, shared int) {
	// Fast path: nothing waits, as before.
	if own+shared == 0 && !u.waits {
		return
	}
	if !u.waits {
		u.client = u.owner.Client()
	}
	if !u.waits || int64(own+shared) < u.bytes.Load()+u.shared.Load() {
		u.since.Store(time.Now().UnixNano())
	}
	u.shared.Store(int64(shared))
	more, its := u.set(u.account, Unread, int64(own))
	if waits := own+shared > 0; waits != u.waits {
		u.waits = waits
		u.account.readersMu.Lock()
		if waits {
			u.account.readers[u] = true
		} else {
			delete(u.account.readers, u)
		}
		u.account.readersMu.Unlock()
	}
	if most := u.account.share(); more > 0 && (u.account.Of(Unread) > most || its > most/2) {
		u.account.wakeWatcher()
	}
}

// AdmitAnswer checks that a list or history may begin for a client, which may be nil. The
// error is a *wire.Problem.
func (a *Account) AdmitAnswer(c *Client) error {
	switch most := a.share(); {
	case c != nil && c.unread.Load() > most/2:
		return a.refuse(wire.CodeLimited, "read your pending answers; if clients share a proxy's address, add it to trusted_proxies",
			"your address has reached its limit of unread bytes of answers")
	case a.Of(Unread) > most || a.Pressure() >= High:
		return a.refuse(wire.CodeOverloaded, moreMemory, "the daemon has no memory for another long answer now")
	}
	return nil
}

// A slowReader is the state of a connection when collectReaders read it.
type slowReader struct {
	unread   *UnreadBytes
	client   *Client // nil: none
	own, all int64
	stalled  bool
}

// cutSlowest closes the connections of the slowest readers: stalled ones first, the largest
// first. If the share is full, or an address has more than half of it, it continues until
// a quarter of that is free. To free excess bytes it closes only stalled readers. It
// returns their number and bytes.
func (a *Account) cutSlowest(now time.Time, excess int64) (cut int, freed int64) {
	most := a.share()
	slow, all, of := a.collectReaders(now)
	full, heavy := all > most, make(map[*Client]bool)
	for c, bytes := range of {
		heavy[c] = c != nil && bytes > most/2
	}
	for _, r := range slow {
		switch {
		case full && all > most/4*3:
		case heavy[r.client] && of[r.client] > most/8*3:
		case r.stalled && freed < excess:
		default:
			continue
		}
		r.unread.cut.Store(true)
		r.unread.owner.CutOff()
		cut, freed = cut+1, freed+r.all
		all -= r.own
		of[r.client] -= r.own
	}
	return cut, freed
}

// collectReaders returns the readers that can be cut, the slowest first, and their own
// bytes: in total, and by address.
func (a *Account) collectReaders(now time.Time) (slow []slowReader, all int64, of map[*Client]int64) {
	a.readersMu.Lock()
	defer a.readersMu.Unlock()
	of = make(map[*Client]int64)
	for u := range a.readers {
		if u.cut.Load() {
			continue
		}
		own := u.bytes.Load()
		all += own
		of[u.client] += own
		slow = append(slow, slowReader{u, u.client, own, own + u.shared.Load(), now.UnixNano()-u.since.Load() >= int64(stalledAfter)})
	}
	slices.SortFunc(slow, func(x, y slowReader) int {
		switch {
		case x.stalled == y.stalled:
			return cmp.Compare(y.all, x.all)
		case x.stalled:
			return -1
		}
		return 1
	})
	return slow, all, of
}
