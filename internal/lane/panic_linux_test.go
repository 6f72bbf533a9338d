package lane_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// panicking is an authority that panics for the token boom, and an authorizer that panics for the
// topic boom.
type panicking struct{ auth.Open }

func (p panicking) Identify(c auth.Credentials, verify bool) (*auth.Grant, error) {
	if c.Authorization == "boom" {
		panic("boom")
	}
	return p.Open.Identify(c, verify)
}

func (panicking) Selects(topics []wire.Start) bool {
	if slices.ContainsFunc(topics, func(s wire.Start) bool { return s.Topic == "boom" }) {
		panic("boom")
	}
	return false
}

func (panicking) Authorize(context.Context, hook.Subscribing) error { return nil }

// A panic in a command ends its connection, like a panic in a request. Other connections
// continue.
func TestACommandThatPanicsEndsItsConnection(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{Authority: panicking{}, Authorize: panicking{}}, nil)
		good, bad := k.Connect(wire.Start{Topic: "a"}), k.Connect(wire.Start{Topic: "a"})
		good.Hello()
		bad.Hello()
		bad.Send(wire.Command{Ref: new(uint64(1)), Subscribe: []wire.Start{{Topic: "boom"}}})
		_, err := bad.Next()
		require.Error(t, err)
		k.Publish("a", "1")
		good.WantFrame("a1", "1")
		good.Close()
		bad.Close()
		require.Eventually(t, func() bool { return k.Subscriptions() == 0 }, lanetest.Surely, time.Millisecond)
	})
}

// As in net/http, a panic ends only the connection of its request.
func TestAPanicOnTheLaneEndsOneConnection(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{Authority: panicking{}, Authorize: panicking{}}, nil)
		for i, ask := range []string{strings.Replace(lanetest.Publishing("b", "1"), "\r\n", "\r\nAuthorization: boom\r\n", 1), "GET /v1/poll?topic=boom HTTP/1.1\r\nHost: h\r\n\r\n"} {
			c, other := k.CallOnLane(), k.CallOnLane()
			c.Send(ask)
			c.WantClosed()
			k.WantOnLane(i + 1)
			other.Send(lanetest.Publishing("a", "1"))
			other.WantPublished("a")
		}
		require.Zero(t, k.Parts.Limiter.Sessions().Gauge().InUse)
	})
}
