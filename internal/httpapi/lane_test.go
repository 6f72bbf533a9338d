package httpapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// newLaneKit returns a kit with the lane. It uses real sockets, because the lane makes
// raw system calls.
func newLaneKit(t *testing.T, way lane.Way, origins ...string) *kit {
	return serveLane(t, way, lanetest.Settings{Origins: origins}, nil)
}

// serveLane is newLaneKit with settings, and with control for the sockets of both sides.
func serveLane(t *testing.T, way lane.Way, s lanetest.Settings, control lanetest.ControlFunc) *kit {
	k := &kit{}
	k.Kit = lanetest.Serve(t, way, s, control, func(p lanetest.Parts) (http.Handler, *lane.Lane) {
		k.api = newAPI(p)
		return k.api, k.api.Lane
	})
	return k
}

// dialFrom is dial from the address 10.0.0.last.
func (k *kit) dialFrom(last int) net.Conn {
	nc, err := k.HTTP.Transport.(*http.Transport).DialContext(from(k.Context(), last), "tcp", "pubsubd")
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
