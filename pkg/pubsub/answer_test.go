package pubsub

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestHeartbeatsKeepAQuietStream(t *testing.T) {
	for _, options := range [][]SubscribeOption{{WithMode(Stream)}, {WithMode(Stream), Stateless()}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.limits.HeartbeatMS = 60_000 // longer than what the client believes before it is told
			c := serveFake(t, f)
			s := subscribe(t, c, []wire.Start{FromNow("a")}, options...)
			time.Sleep(24 * time.Hour)
			f.publish("a", 1)
			wantNext(t, s, "a@k3:1")
			require.Len(t, f.seen(), 1, "one stream all day")
		})
	}
}

func TestPollsAreHeldAsLongAsTheDaemonSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.limits.PollTimeoutMS = 300_000
		c := serveFake(t, f)
		var waited waits
		subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch), waited.notify())
		time.Sleep(61 * time.Minute)
		require.Len(t, f.seen(), 13)
		errs, _ := waited.seen()
		require.Empty(t, errs)
	})
}

// The daemon, or the network between, dies without a word.
func TestSilenceEndsAnAnswer(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		var waited waits
		s := subscribe(t, c, []wire.Start{FromNow("a")}, append(w.options, waited.notify())...)
		synctest.Wait()
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		synctest.Wait()
		began := time.Now()
		f.mute()
		time.Sleep(2 * time.Minute)
		errs, _ := waited.seen()
		require.NotEmpty(t, errs)
		require.ErrorIs(t, errs[0], errSilent)

		f.publish("a", 1)
		f.set(func() { f.script, f.muted = nil, false })
		wantNext(t, s, "a@k3:2")
		require.Less(t, time.Since(began), 4*time.Minute)
		wantQuiet(t, s)
	})
}

// An answer that stops in its middle is given up too, and what came is kept.
func TestSilenceInTheMiddleOfAnAnswer(t *testing.T) {
	for _, mode := range []Mode{Batch, Multiple, Stream} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				stuck := false
				f.script = func(w http.ResponseWriter, r *http.Request) bool {
					if stuck || r.Method != http.MethodGet {
						return false
					}
					stuck = true
					w.Header().Set("Content-Type", "application/x-ndjson")
					_, _ = w.Write([]byte("{\"position\":\"a@k3:1\",\"time\":1,\"data\":1}\n{\"posi"))
					_ = http.NewResponseController(w).Flush()
					f.set(func() { // as the daemon's books would say
						s := f.sessions["session-1"]
						s.sent["a"] = wire.Position{Topic: "a", Epoch: "k3", Offset: 1}
						s.unacked = []wire.Content{{Message: f.topics["a"].messages[0]}}
					})
					<-r.Context().Done()
					return true
				}
				f.publish("a", 2)
				s := subscribe(t, c, []wire.Start{FromOldest("a")}, WithMode(mode))
				began := time.Now()
				wantNext(t, s, "a@k3:1")
				require.Zero(t, time.Since(began), "a whole frame does not wait for the next")
				wantNext(t, s, "a@k3:2")
				require.Less(t, time.Since(began), time.Minute)
				wantQuiet(t, s)
			})
		})
	}
}

// Not every cut shows: this answer ends well, but has fewer frames than it says. What is missing is
// asked for again.
func TestAnAnswerWithFewerFramesThanItSaysIsCut(t *testing.T) {
	for _, mode := range []Mode{Batch, Single} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.publish("a", 3)
			f.script = func(w http.ResponseWriter, r *http.Request) bool {
				if len(f.seen()) > 0 {
					return false
				}
				answer := httptest.NewRecorder()
				f.route(answer, r)
				hello, _ := answer.Body.ReadBytes('\n')
				w.Header().Set("Content-Type", r.Header.Get("Accept"))
				_, _ = w.Write(hello)
				return true
			}
			var waited waits
			s := subscribe(t, serveFake(t, f), []wire.Start{FromOldest("a")}, WithMode(mode), Stateless(), waited.notify())
			wantNext(t, s, "a@k3:1", "a@k3:2", "a@k3:3")
			errs, _ := waited.seen()
			require.Equal(t, []error{errIncomplete}, errs)
		})
	}
}

// A caller who takes his time is not a daemon that is silent.
func TestASlowCallerIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 10*itemBuffer)
		var waited waits
		s := subscribe(t, c, []wire.Start{FromOldest("a")}, WithMode(Batch), waited.notify())
		time.Sleep(time.Hour)
		for range 10 * itemBuffer {
			_, err := s.Next(t.Context())
			require.NoError(t, err)
		}
		errs, _ := waited.seen()
		for _, err := range errs {
			require.NotErrorIs(t, err, errSilent)
		}
	})
}

func TestBelieve(t *testing.T) {
	require.Equal(t, defaultLimits, believe(wire.Limits{}))
	require.Equal(t, defaultLimits, believe(wire.Limits{PollTimeoutMS: -1, HeartbeatMS: 1 << 62, MaxOutputDelayMS: 0}))
	said := wire.Limits{PollTimeoutMS: 1, HeartbeatMS: 2, MaxOutputDelayMS: 3}
	require.Equal(t, said, believe(said))
}
