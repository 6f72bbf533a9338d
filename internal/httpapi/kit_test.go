package httpapi

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// A kit is an API behind a real http.Server on an in-memory network. So it can run in a
// synctest bubble.
type kit struct {
	*lanetest.Kit
	api *API
}

func newKit(t *testing.T, s lanetest.Settings) *kit {
	k := &kit{Kit: &lanetest.Kit{TB: t, Parts: lanetest.NewParts(s)}}
	k.WantNoNewSeries()
	k.serve()
	return k
}

func newAPI(p lanetest.Parts) *API {
	return New(Config{
		App: app.New(p.Config), Limiter: p.Limiter, Polls: p.Polls, Metrics: p.Metrics,
		Way: p.Lane, Origins: p.Origins, Hosts: p.Hosts, Log: p.Log,
	})
}

func (k *kit) serve() {
	l := newPipeListener()
	k.api = newAPI(k.Parts)
	k.Lane = k.api.Lane
	server := &http.Server{Handler: k.api, ReadHeaderTimeout: time.Minute}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	network := &http.Transport{DialContext: l.dial, DisableCompression: true}
	k.HTTP = &http.Client{Transport: network}
	k.Cleanup(func() {
		network.CloseIdleConnections()
		require.NoError(k, server.Close())
		running.Wait()
		time.Sleep(time.Second) // fake time: net/http lingers before it closes a connection after an error
		k.Parts.Broker.Close()
	})
}

// pipeListener is an in-memory network with one server.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	if from, ok := ctx.Value(fromKey{}).(net.Addr); ok {
		there = addressed{there, from}
	}
	select {
	case l.conns <- there:
		return here, nil
	case <-l.done:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

// fromKey is the context key of a connection's remote address, a net.Addr.
type fromKey struct{}

// An addressed is a connection with a given remote address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }
