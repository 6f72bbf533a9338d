package memory

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// SmallWrite is what a write may block with uncounted: each connection has buffers as
// large.
const SmallWrite = 4 << 10

// stalledAfter is how long a client may take no byte before it counts as one that does
// not read.
const stalledAfter = time.Second

// A Holder of bytes is a request or a connection.
type Holder interface {
	// Client returns where bytes count that begin to; nil: of no address. The goroutine
	// that calls Set calls it.
	Client() *Client
}

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
// Bytes are the client's own, or shared: those of a message that many are sent. Shared
// bytes count once, with their message. Here they only tell which clients are slow.
type UnreadBytes struct {
	account *Account // immutable, like owner
	owner   Owner

	client      *Client // of the bytes that wait now; nil: of no address
	waits       bool    // some bytes do
	own, shared atomic.Int64
	since       atomic.Int64 // Unix nanoseconds; when the client last took bytes, or some began to wait
	cut         atomic.Bool
}

// Init makes u count the bytes of an owner in a. It is called before anything else.
func (u *UnreadBytes) Init(a *Account, owner Owner) { u.account, u.owner = a, owner }

// Set states how many bytes wait now. While none do, and none did, it costs nothing.
func (u *UnreadBytes) Set(own, shared int) {
	// Fast path: nothing waits, as before.
	if own+shared == 0 && !u.waits {
		return
	}
	if !u.waits {
		u.client = u.owner.Client()
	}
	if !u.waits || int64(own+shared) < u.own.Load()+u.shared.Load() {
		u.since.Store(time.Now().UnixNano())
	}
	more := int64(own) - u.own.Swap(int64(own))
	u.shared.Store(int64(shared))
	u.account.Add(Unread, more)
	its := int64(0)
	if u.client != nil {
		its = u.client.unread.Add(more)
	}
	if waits := own+shared > 0; waits != u.waits {
		u.waits = waits
		u.account.readers.set(u, waits)
	}
	if most := u.account.share(); more > 0 && (u.account.Of(Unread) > most || its > most/2) {
		u.account.wakeWatcher()
	}
}

// readers are the connections for which bytes wait.
type readers struct {
	mu      sync.Mutex
	waiting map[*UnreadBytes]bool
}

func (r *readers) set(u *UnreadBytes, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if waits {
		r.waiting[u] = true
	} else {
		delete(r.waiting, u)
	}
}

// AdmitAnswer makes sure that a list or history may be begun for a client, which may be
// nil. The error is a *wire.Problem.
func (a *Account) AdmitAnswer(c *Client) error {
	switch most := a.share(); {
	case c != nil && c.unread.Load() > most/2:
		return a.refuse(wire.NewProblem(wire.CodeLimited, "read the answers that you asked for; if many share the address of a proxy, name that in trusted_proxies",
			"your address leaves as much unread as the daemon holds for one"))
	case a.Of(Unread) > most || a.Pressure() >= High:
		return a.refuse(wire.NewProblem(wire.CodeOverloaded, "retry later, or give the daemon more memory (memory.budget)",
			"the daemon has no memory for more answers at one time"))
	}
	return nil
}

// A slowReader is a connection as collect found it.
type slowReader struct {
	unread   *UnreadBytes
	client   *Client // nil: of none
	own, all int64
	stalled  bool
}

// cutSlowest cuts the slowest readers: those that took no byte for stalledAfter, the
// largest first; then the largest of the others. If the share is full, or an address
// has more than half of it, it goes on until a quarter of that is free. To free excess
// bytes it cuts only stalled readers. It returns how many it cut, and their bytes.
func (a *Account) cutSlowest(now time.Time, excess int64) (cut int, freed int64) {
	most := a.share()
	slow, all, of := a.readers.collect(now)
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

// collect returns the readers that can be cut, the slowest first, and the bytes of their
// own: of all, and by address.
func (r *readers) collect(now time.Time) (slow []slowReader, all int64, of map[*Client]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of = make(map[*Client]int64)
	for u := range r.waiting {
		if u.cut.Load() {
			continue
		}
		own := u.own.Load()
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
