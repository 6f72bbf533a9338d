package httpapi

import (
	"io"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// A part is a body, or a command, whose end has not come: its bytes count in the memory
// account, and against its client's address.
type part struct {
	api  *API
	who  limit.Who
	held memory.UnfinishedBytes
}

// set states how many bytes there are now. The error is a *wire.Problem.
func (p *part) set(bytes int64) error {
	return p.held.Set(p.api.Broker.Memory(), bytes, func() *memory.Client { return p.api.Limiter.Client(p.who) })
}

// over ends the count. It may be called again.
func (p *part) over() { _ = p.set(0) }

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
	if full := b.set(b.read); full != nil {
		return 0, full
	}
	return n, err
}

// counted returns what counts the unfinished command of one of w's connections; see
// transport.Conversation.
func (a *API) counted(w limit.Who) (hold func(bytes int64) error) { return (&part{api: a, who: w}).set }
