//go:build linux

package httpapi

import (
	"syscall"
	"testing"
	"time"

	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
)

// What runs in production: sockets, and the lane. Fake time does not hold them.
func TestTheLaneDeliversTheSame(t *testing.T) {
	for part, way := range []LaneWay{LaneHandOff, LaneChannel} {
		for _, s := range sampleOf(everyPoll(), part) {
			t.Run(string(way)+" "+s.String(), func(t *testing.T) {
				transporttest.RunInRealTime(t, func(t *testing.T, b transporttest.Bounds) transporttest.System {
					return s.on(newLaneKitFor(t, way, b))
				})
			})
		}
		for _, s := range sampleOf(everySocket(), part) {
			t.Run(string(way)+" WebSocket "+s.String(), func(t *testing.T) {
				transporttest.RunInRealTime(t, func(t *testing.T, b transporttest.Bounds) transporttest.System {
					return s.on(newLaneKitFor(t, way, b))
				})
			})
		}
	}
}

// newLaneKitFor returns a kit for a story. Its sockets hold less than a flood, and an
// answer in parts stays open however slow the machine is.
func newLaneKitFor(t *testing.T, way LaneWay, b transporttest.Bounds) *kit {
	s := boundsOf(b)
	s.transport = transport.Config{MaxOutputDelay: time.Minute, MultipleTime: time.Minute}
	return serveLane(t, way, s, buffers(64<<10))
}

// buffers sets sockets up that hold about so many bytes, in each direction.
func buffers(bytes int) controlFunc {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		controlErr := c.Control(func(fd uintptr) {
			for _, buffer := range []int{syscall.SO_SNDBUF, syscall.SO_RCVBUF} {
				if err == nil {
					err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, buffer, bytes)
				}
			}
		})
		if controlErr != nil {
			return controlErr
		}
		return err
	}
}
