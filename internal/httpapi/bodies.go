package httpapi

import (
	"io"
	"sync/atomic"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// bodies counts what the bodies take of requests that are being read, and held:
// whoever has many connections could fill the memory with requests that never end.
type bodies struct{ taken atomic.Int64 }

// A body is one of them.
type body struct {
	io.ReadCloser
	api  *API
	read int64
}

// freeBody is what each body may have uncounted. So much a connection takes anyway, and
// most publishes have less: who fills what there is for large bodies keeps out no small
// ones.
const freeBody = 16 << 10

// Read implements io.Reader. The error may be a *wire.Problem.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	before := b.counted()
	b.read += int64(n)
	if more := b.counted() - before; more > 0 && b.api.bodies.taken.Add(more) > b.api.mostBodies() {
		b.api.Metrics.Limited.WithLabelValues("memory").Inc()
		p := wire.NewProblem(wire.CodeOverloaded, "retry later, or give the daemon more memory (memory.budget)",
			"the daemon has no memory for more large bodies at one time")
		p.RetryAfterMS = 1000
		return 0, p
	}
	return n, err
}

func (b *body) counted() int64 { return max(0, b.read-freeBody) }

// over is told that the body is no longer held. It may be called again.
func (b *body) over() {
	b.api.bodies.taken.Add(-b.counted())
	b.read = 0
}

// mostBodies is what all may take together: a quarter of the memory budget, or what a
// few of the largest need.
func (a *API) mostBodies() int64 {
	_, budget := a.Broker.Held()
	return max(budget/4, 4*int64(max(a.Limits().MessageBytes, maxRequestBytes)))
}
