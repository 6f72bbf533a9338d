package httpapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// newLaneKit returns a kit with the lane. It uses real sockets, because the lane makes
// raw system calls.
func newLaneKit(t *testing.T, way lane.Way, origins ...string) *kit {
	return serveLane(t, way, settings{origins: origins}, nil)
}

// A controlFunc sets socket options, like Control in net.Dialer and net.ListenConfig.
type controlFunc func(network, address string, c syscall.RawConn) error

// serveLane is newLaneKit with settings, and with control for the sockets of both sides.
func serveLane(t *testing.T, way lane.Way, s settings, control controlFunc) *kit {
	k := &kit{T: t, cfg: newParts(s)}
	k.wantNoNewSeries()
	k.cfg.Lane = way
	api := k.cfg.newAPI()
	k.api, k.begun = api, time.Now()
	socket, err := (&net.ListenConfig{Control: control}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &countedListener{socket, k.cfg}
	server := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute, ConnContext: listen.NewContext, ConnState: listen.ConnState}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	running.Go(func() { _ = server.Serve(api.Lane.Listener()) })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Control: control}).DialContext(ctx, "tcp", l.Addr().String())
	}
	network := &http.Transport{DialContext: dial, DisableCompression: true}
	k.client = &http.Client{Transport: network}
	k.Cleanup(func() {
		network.CloseIdleConnections()
		require.NoError(k, server.Close())
		api.Lane.Close()
		running.Wait()
		k.cfg.Broker.Close()
	})
	return k
}

// A countedListener registers every connection with the limiter.
type countedListener struct {
	net.Listener
	cfg parts
}

func (l *countedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	counted, err := l.cfg.Limiter.Connect(nc.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
	if err != nil {
		return nil, err
	}
	return listen.New(nc, counted, l.cfg.Metrics, nil), nil
}

// dial connects to the kit's server over the network of its client.
func (k *kit) dial() (net.Conn, error) {
	return k.client.Transport.(*http.Transport).DialContext(context.Background(), "tcp", "pubsubd")
}

// dialFrom is dial from the address 10.0.0.last.
func (k *kit) dialFrom(last int) net.Conn {
	nc, err := k.client.Transport.(*http.Transport).DialContext(from(k.Context(), last), "tcp", "pubsubd")
	require.NoError(k, err)
	return nc
}

// from makes an in-memory network dial from the address 10.0.0.last.
func from(ctx context.Context, last int) context.Context {
	return context.WithValue(ctx, fromKey{}, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(last)), Port: 1}))
}

// As TestNothingIsLostWhereverAnAnswerIsCut, where the lane answers.
func TestNothingIsLostWhereverAnAnswerOfTheLaneIsCut(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Channel} {
		for _, mode := range transport.Modes() {
			for _, stateless := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s stateless=%t", way, mode, stateless), func(t *testing.T) {
					k := newLaneKit(t, way)
					k.cutEverywhere(250, func(at int) bool { return k.cutAnswerAt(at, mode, stateless, true, subscribePlainly) })
				})
			}
		}
	}
}
