//go:build linux

package httpapi

import (
	"testing"
	"time"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
)

// Tests what runs in production: real sockets and the lane. They cannot run in fake time.
func TestTheLaneDeliversTheSame(t *testing.T) {
	for part, way := range []lane.Way{lane.HandOff, lane.Channel} {
		for i, s := range sampleOf(everyPoll(), part) {
			t.Run(string(way)+" "+s.String(), func(t *testing.T) {
				transporttest.RunInRealTime(t, someStories(i+3*part, 6), func(t *testing.T, b transporttest.Bounds) transporttest.System {
					return s.on(newLaneKitFor(t, way, b))
				})
			})
		}
		for i, s := range sampleOf(everySocket(), part) {
			t.Run(string(way)+" WebSocket "+s.String(), func(t *testing.T) {
				transporttest.RunInRealTime(t, someStories(i+2*part, 4), func(t *testing.T, b transporttest.Bounds) transporttest.System {
					return s.on(newLaneKitFor(t, way, b))
				})
			})
		}
	}
}

// newLaneKitFor returns a kit with a test's bounds. Its sockets hold less than a flood.
// An answer in parts stays open even on a slow machine.
func newLaneKitFor(t *testing.T, way lane.Way, b transporttest.Bounds) *kit {
	s := boundsOf(b)
	s.Transport = transport.Config{MaxOutputDelay: time.Minute, MultipleTime: time.Minute}
	return serveLane(t, way, s, lanetest.Buffers(64<<10))
}
