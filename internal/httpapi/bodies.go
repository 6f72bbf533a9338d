package httpapi

import (
	"io"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// A body is that of a request. Until over, what was read of it counts in the memory
// account, and against its client's address.
type body struct {
	io.ReadCloser
	api  *API
	who  limit.Who
	held memory.UnfinishedBytes
	read int64
}

// Read implements io.Reader. The error may be a *wire.Problem.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if full := b.held.Set(b.api.Broker.Memory(), b.read, b); full != nil {
		return 0, full
	}
	return n, err
}

// over ends the count. It may be called again.
func (b *body) over() { _ = b.held.Set(b.api.Broker.Memory(), 0, b) }

// Client implements memory.Holder.
func (b *body) Client() *memory.Client { return b.who.Client() }
