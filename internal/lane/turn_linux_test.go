package lane

import (
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// published is an API that counts publishes.
type published struct {
	everything
	n atomic.Int64
}

func (p *published) Publish(Publish) (wire.Published, error) {
	p.n.Add(1)
	return wire.Published{}, nil
}

// newTended returns a connection that nobody hears for, and its client's side.
func newTended(t *testing.T) (c *conn, api *published, client int) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		closeFD(pair[0])
		closeFD(pair[1])
	})
	api = &published{}
	l := New(Config{API: api, Metrics: metrics.New("test"), Origins: cors.New(nil), Idle: time.Minute, WriteTimeout: time.Minute})
	return &conn{output: output{lane: l, fd: pair[0]}, parser: parser{lane: l}}, api, pair[1]
}

// ask writes publishes from the client's side.
func ask(t *testing.T, client, requests int) {
	t.Helper()
	ahead := strings.Repeat("POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1", requests)
	n, errno := rawWrite(client, []byte(ahead))
	require.Zero(t, errno)
	require.Equal(t, len(ahead), n)
}

// A client that asks ahead for much has its turns: the others have theirs between.
func TestAConnectionHasTurns(t *testing.T) {
	const requests = 100
	c, api, client := newTended(t)
	ask(t, client, requests)
	c.mu.Lock()
	c.unread = true
	require.True(t, c.goOn())
	require.Less(t, api.n.Load(), int64(atATime), "one turn")
	c.unlock()
	c.lane.running.Wait()
	require.EqualValues(t, requests, api.n.Load(), "all turns")
}

// What is heard of a connection that someone else tends is that one's to look at: a
// reader does not wait.
func TestAReaderDoesNotWaitForAConnection(t *testing.T) {
	c, api, client := newTended(t)
	ask(t, client, 1)
	c.mu.Lock()
	c.happened(heardArrival)
	require.Zero(t, api.n.Load())
	c.unlock()
	require.EqualValues(t, 1, api.n.Load())
	ask(t, client, 1)
	c.happened(heardArrival)
	require.EqualValues(t, 2, api.n.Load())
}
