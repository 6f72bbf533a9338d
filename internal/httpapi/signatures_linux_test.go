package httpapi

import (
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// unverified is an authority that accepts each token, once it was verified.
type unverified struct {
	auth.Open
	known *sync.Map
}

func (u unverified) Identify(c auth.Credentials, verify bool) (*auth.Grant, error) {
	token := c.Authorization + c.Token
	if _, known := u.known.Load(token); token != "" && !known && !verify {
		return nil, auth.ErrUnverified
	}
	u.known.Store(token, true)
	return auth.Anyone, nil
}

// A token that is not known is verified outside of the loop, when its turn comes. Meanwhile the
// loop serves others. Afterwards it is known.
func TestALoopVerifiesNoToken(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, settings{authority: unverified{known: &sync.Map{}}, limits: limit.Config{Wait: surely}}, nil)
		id := k.openA()
		ask := func(request, token string) string {
			return strings.Replace(request, "Host: h\r\n", "Host: h\r\nAuthorization: Bearer "+token+"\r\n", 1)
		}
		other := k.callOnLane()
		for name, c := range map[string]struct {
			request string
			answer  string
		}{
			"publish":     {publishing("b", "1"), `"position":"b@`},
			"poll":        {polling(id, 0), ""},
			"topics poll": {"GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n", `"data":7`},
		} {
			k.publish("a", "7")
			caller := k.callOnLane()
			checks, n := k.cfg.Limiter.Signatures(), max(1, runtime.GOMAXPROCS(0)/2)
			for range n {
				require.NoError(t, checks.Enter(t.Context(), nil))
			}
			caller.send(ask(c.request, name), publishing("after", "1"))
			require.Eventually(t, func() bool { return k.waitingFor("signatures") == 1 }, surely, time.Millisecond, name)
			other.send(publishing("others", "1"))
			other.wantPublished("others")
			for range n {
				checks.Leave()
			}
			require.Contains(t, caller.wantAnswer(http.StatusOK), c.answer, name)
			caller.wantPublished("after")

			require.Zero(t, k.waitingFor("signatures"))
			caller.send(ask(publishing("b", "1"), name))
			caller.wantPublished("b")
		}
		require.Zero(t, k.counted("pubsubd_lane_returned_total"))
	})
}

func (k *kit) waitingFor(limit string) int {
	var g metrics.Gauges
	k.cfg.Limiter.Gauges(&g)
	for _, l := range g.Limits {
		if l.Name == limit {
			return l.Waiting
		}
	}
	panic("BUG: no such limit")
}

// A new token on a two-way connection waits for its turn. Messages of the session do not.
func TestATokenOfACommandWaitsForItsTurn(t *testing.T) {
	onBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, settings{authority: unverified{known: &sync.Map{}}, limits: limit.Config{Wait: surely}}, nil)
		s := k.connect(wire.Start{Topic: "a"})
		s.hello()
		checks, n := k.cfg.Limiter.Signatures(), max(1, runtime.GOMAXPROCS(0)/2)
		for range n {
			require.NoError(t, checks.Enter(t.Context(), nil))
		}
		s.send(wire.Command{Ref: new(uint64(1)), Auth: "new"})
		require.Eventually(t, func() bool { return k.waitingFor("signatures") == 1 }, surely, time.Millisecond)
		k.publish("a", "1")
		s.wantFrame("a1", "1")
		for range n {
			checks.Leave()
		}
		require.Nil(t, s.wantReply(1).Problem)
	})
}
