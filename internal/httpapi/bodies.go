package httpapi

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// bodies counts what the bodies take of requests that are being read, and held, and the
// parts of commands whose rest is to come: whoever has many connections could fill the
// memory with what never ends.
type bodies struct{ taken atomic.Int64 }

// A part is one of them.
type part struct {
	api     *API
	who     limit.Who // whose it is; current while something is counted
	counted int64
}

// freeBody is what each body may have uncounted. So much a connection takes anyway, and
// most messages are smaller: large bodies that fill the memory must not keep out small
// ones.
const freeBody = 16 << 10

// is says how many bytes there are of it now. The error is a *wire.Problem.
func (p *part) is(bytes int64) error {
	more := max(0, bytes-freeBody) - p.counted
	if more == 0 {
		return nil
	}
	if p.counted == 0 {
		p.who = p.api.Limiter.Current(p.who)
	}
	p.counted += more
	all, its, most := p.api.bodies.taken.Add(more), p.who.Unfinished(more), p.api.mostBodies()
	switch {
	case more < 0 || all <= most && its <= most/2:
		return nil
	case all <= most:
		return p.tooMuch(wire.NewProblem(wire.CodeLimited, "send less at a time; if many share the address of a proxy, name that in trusted_proxies",
			"your address has sent as much of large bodies as the daemon holds for one, and the end of none"))
	}
	return p.tooMuch(wire.NewProblem(wire.CodeOverloaded, "retry later, or give the daemon more memory (memory.budget)",
		"the daemon has no memory for more large bodies at one time"))
}

func (p *part) tooMuch(problem *wire.Problem) error {
	p.api.Metrics.Limited.WithLabelValues("memory").Inc()
	return problem.Retry(time.Second)
}

// over is told that it is no longer held. It may be called again.
func (p *part) over() { _ = p.is(0) }

// A body is that of a request.
type body struct {
	io.ReadCloser
	part
	read int64
}

// Read implements io.Reader. The error may be a *wire.Problem.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if full := b.is(b.read); full != nil {
		return 0, full
	}
	return n, err
}

// counted returns what counts the unfinished command of one of w's connections; see
// transport.Conversation.
func (a *API) counted(w limit.Who) (hold func(bytes int64) error) { return (&part{api: a, who: w}).is }

// mostBodies is what all may take together, and those of one address half of it: a
// quarter of the memory budget, or what a few of the largest need.
func (a *API) mostBodies() int64 {
	_, budget := a.Broker.Held()
	return max(budget/4, 5*int64(max(a.Limits().MessageBytes, maxRequestBytes)))
}
