package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// say publishes n messages to topic a.
func (k *kit) say(n int) {
	k.Helper()
	for range n {
		status, text := k.Get("POST", "/v1/topics/a/messages", "1", lanetest.JSONType)
		require.Equal(k, http.StatusOK, status, text)
		synctest.Wait() // the fan-out is done
	}
}

func TestAQuietStreamSendsHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		resp := k.Do("GET", "/v1/sessions/"+k.Open(`{"topics":["a"]}`).Session+"/poll?ack=0&mode=stream", "")
		defer resp.Body.Close()
		giveUp := time.AfterFunc(10*lanetest.Defaults.Heartbeat, func() { resp.Body.Close() })
		defer giveUp.Stop()
		lines := bufio.NewReader(resp.Body)
		hello, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, hello, `"hello"`)
		for range 3 {
			begun := time.Now()
			beat, err := lines.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "\n", beat)
			require.Equal(t, lanetest.Defaults.Heartbeat, time.Since(begun))
		}
	})
}

func TestABatchEndsAtItsBounds(t *testing.T) {
	message := (&wire.Message{Data: []byte("1")}).Size()
	for name, bounds := range map[string]transport.Config{
		"frames": {AnswerFrames: 3},
		"bytes":  {AnswerBytes: 3 * message},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, lanetest.Settings{Transport: bounds})
				poll := "/v1/sessions/" + k.Open(`{"topics":["a"]}`).Session + "/poll?ack="
				k.say(5)
				_, first := k.Get("GET", poll+"0", "")
				require.Equal(t, 3, strings.Count(first, "\n"))
				_, rest := k.Get("GET", poll+"3", "")
				require.Equal(t, 2, strings.Count(rest, "\n"))
			})
		})
	}
}

// An answer in mode multiple ends after MaxOutputDelay without a message. While messages
// keep coming, it ends after MultipleTime.
func TestAMultipleAnswerEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		poll := "/v1/sessions/" + k.Open(`{"topics":["a"]}`).Session + "/poll?mode=multiple&ack="
		k.say(1)
		begun := time.Now()
		_, quiet := k.Get("GET", poll+"0", "")
		require.Equal(t, 1, strings.Count(quiet, "\n"))
		require.Equal(t, lanetest.Defaults.MaxOutputDelay, time.Since(begun))

		stopped, stop := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
					_, _ = k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, time.Now())
				}
			}
		}()
		begun = time.Now()
		_, busy := k.Get("GET", poll+"1", "")
		require.Greater(t, strings.Count(busy, "\n"), 40)
		require.InDelta(t, lanetest.Defaults.MultipleTime, time.Since(begun), float64(200*time.Millisecond))
		close(stop)
		<-stopped
	})
}

// The end frames of a drain carry different retry delays, so that clients do not all
// reconnect at once.
func TestEndFramesAreSpreadInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		var bodies []io.ReadCloser
		for range 10 {
			path := "/v1/sessions/" + k.Open(`{"topics":["a"]}`).Session + "/poll?ack=0&mode=stream"
			resp := k.Do("GET", path, "")
			defer resp.Body.Close()
			bodies = append(bodies, resp.Body)
		}
		why := problem.New(wire.CodeDraining, "elsewhere", "going away")
		why.RetryAfterMS = 1000
		k.Parts.Sessions.BeginDrain(why).End(math.MaxInt)
		times := map[int64]bool{}
		for _, body := range bodies {
			text, err := io.ReadAll(body)
			require.NoError(t, err)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			var end struct{ End wire.Problem }
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &end))
			require.GreaterOrEqual(t, end.End.RetryAfterMS, int64(1000))
			require.LessOrEqual(t, end.End.RetryAfterMS, int64(2000))
			times[end.End.RetryAfterMS] = true
		}
		require.Greater(t, len(times), 3, fmt.Sprint(times))
	})
}

func TestWaitReturnsAfterTheLastRequest(t *testing.T) {
	var a API
	a.serving.RLock() // one request is being served
	waited := make(chan struct{})
	go func() { a.Wait(); close(waited) }()
	require.Eventually(t, func() bool {
		begins := a.serving.TryRLock()
		if begins {
			a.serving.RUnlock()
		}
		return !begins
	}, 10*time.Second, time.Millisecond)
	require.PanicsWithValue(t, http.ErrAbortHandler, func() {
		a.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/topics", nil))
	}, "no request begins any more")
	select {
	case <-waited:
		require.Fail(t, "one request is being served")
	default:
	}
	a.serving.RUnlock()
	<-waited
}
