package lane_test

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
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
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
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{Authority: unverified{known: &sync.Map{}}, Limits: limit.Config{Wait: lanetest.Surely}}, nil)
		id := k.OpenA()
		ask := func(request, token string) string {
			return strings.Replace(request, "Host: h\r\n", "Host: h\r\nAuthorization: Bearer "+token+"\r\n", 1)
		}
		other := k.CallOnLane()
		for name, c := range map[string]struct {
			request string
			answer  string
		}{
			"publish":     {lanetest.Publishing("b", "1"), `"position":"b@`},
			"poll":        {lanetest.Polling(id, 0), ""},
			"topics poll": {"GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n", `"data":7`},
		} {
			k.Publish("a", "7")
			caller := k.CallOnLane()
			checks, n := k.Parts.Limiter.Signatures(), max(1, runtime.GOMAXPROCS(0)/2)
			for range n {
				require.NoError(t, checks.Enter(t.Context(), nil))
			}
			caller.Send(ask(c.request, name), lanetest.Publishing("after", "1"))
			require.Eventually(t, func() bool { return k.WaitingFor("signatures") == 1 }, lanetest.Surely, time.Millisecond, name)
			other.Send(lanetest.Publishing("others", "1"))
			other.WantPublished("others")
			for range n {
				checks.Leave()
			}
			require.Contains(t, caller.WantAnswer(http.StatusOK), c.answer, name)
			caller.WantPublished("after")

			require.Zero(t, k.WaitingFor("signatures"))
			caller.Send(ask(lanetest.Publishing("b", "1"), name))
			caller.WantPublished("b")
		}
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
	})
}

// A new token on a two-way connection waits for its turn. Messages of the session do not.
func TestATokenOfACommandWaitsForItsTurn(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{Authority: unverified{known: &sync.Map{}}, Limits: limit.Config{Wait: lanetest.Surely}}, nil)
		s := k.Connect(wire.Start{Topic: "a"})
		s.Hello()
		checks, n := k.Parts.Limiter.Signatures(), max(1, runtime.GOMAXPROCS(0)/2)
		for range n {
			require.NoError(t, checks.Enter(t.Context(), nil))
		}
		s.Send(wire.Command{Ref: new(uint64(1)), Auth: "new"})
		require.Eventually(t, func() bool { return k.WaitingFor("signatures") == 1 }, lanetest.Surely, time.Millisecond)
		k.Publish("a", "1")
		s.WantFrame("a1", "1")
		for range n {
			checks.Leave()
		}
		require.Nil(t, s.WantReply(1).Problem)
	})
}
