package memory

import (
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Client is what one address holds of the shares of unfinished and unread bytes. It
// may be used concurrently.
type Client struct{ unfinished, unread atomic.Int64 }

// Holds reports whether bytes count against the client.
func (c *Client) Holds() bool { return c.unfinished.Load() > 0 || c.unread.Load() > 0 }

// freeBytes is what each body may have uncounted. A connection takes as much anyway, and
// most messages are smaller: large bodies that fill the share must not keep small ones
// out.
const freeBytes = 16 << 10

// UnfinishedBytes counts one body, or one command, whose end has not come: a client with
// many connections could fill the memory with such. It belongs to one goroutine at a
// time. The zero value counts nothing.
type UnfinishedBytes struct {
	client  *Client // of the bytes counted; nil: of none
	counted int64
}

// Set states how many bytes of a holder there are now; 0 ends the count. The error, a
// *wire.Problem, refuses the bytes, which count nevertheless.
func (u *UnfinishedBytes) Set(a *Account, bytes int64, of Holder) error {
	more := max(0, bytes-freeBytes) - u.counted
	if more == 0 {
		return nil
	}
	if u.counted == 0 {
		u.client = of.Client()
	}
	u.counted += more
	a.Add(Unfinished, more)
	its := int64(0)
	if u.client != nil {
		its = u.client.unfinished.Add(more)
	}
	most := max(a.share(), 5*a.largest.Load())
	switch {
	case more < 0 || a.Of(Unfinished) <= most && its <= most/2:
		return nil
	case a.Of(Unfinished) <= most:
		return a.refuse(wire.NewProblem(wire.CodeLimited, "send less at a time; if many share the address of a proxy, name that in trusted_proxies",
			"your address has sent as much of large bodies as the daemon holds for one, and the end of none"))
	}
	return a.refuse(wire.NewProblem(wire.CodeOverloaded, "retry later, or give the daemon more memory (memory.budget)",
		"the daemon has no memory for more large bodies at one time"))
}

func (a *Account) refuse(problem *wire.Problem) error {
	a.metrics.Limited.WithLabelValues("memory").Inc()
	return problem.Retry(time.Second)
}

// share is how much of the budget unfinished bytes may take, and how much unread ones;
// one address may take half of that.
func (a *Account) share() int64 { return max(a.budget.Load()/4, minShare) }

// minShare is the least share: a few answers.
const minShare = 1 << 20

// SetLargestBody states how large a body may be. A few of them always fit the share.
func (a *Account) SetLargestBody(bytes int) { a.largest.Store(int64(bytes)) }
