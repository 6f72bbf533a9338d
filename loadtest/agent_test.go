package loadtest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ask makes a request of the agent as a coordinator does.
func ask(t *testing.T, a *Agent, method, path string, body any, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(text))
	r.Header.Set("Authorization", "Bearer "+agentToken)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

func order(target string) portionOrder {
	return portionOrder{
		Run: "r1", Target: target, Topics: []string{"t"}, PerTopic: 2, Format: "json", Mode: "batch", Connecting: 5,
		Broadcast: &broadcastOrder{Clients: 5, Period: time.Second, Bursts: 1},
	}
}

func TestAnAgentLetsOnlyItsTokenIn(t *testing.T) {
	a := NewAgent(agentToken, "v1")
	for name, c := range map[string]struct {
		headers []string
		status  int
	}{
		"the token":        {nil, http.StatusOK},
		"another":          {[]string{"Authorization", "Bearer guess"}, http.StatusUnauthorized},
		"a longer one":     {[]string{"Authorization", "Bearer " + agentToken + "x"}, http.StatusUnauthorized},
		"none":             {[]string{"Authorization", ""}, http.StatusUnauthorized},
		"no scheme":        {[]string{"Authorization", ""}, http.StatusUnauthorized},
		"a web page":       {[]string{"Origin", "https://example.com"}, http.StatusForbidden},
		"a browser's form": {[]string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
	} {
		w := ask(t, a, http.MethodGet, "/v1/agent", nil, c.headers...)
		require.Equal(t, c.status, w.Code, name)
		require.NotContains(t, w.Body.String(), agentToken)
	}
	open := NewAgent("", "v1")
	require.Equal(t, http.StatusOK, ask(t, open, http.MethodGet, "/v1/agent", nil, "Authorization", "").Code)
	require.Equal(t, http.StatusForbidden, ask(t, open, http.MethodGet, "/v1/agent", nil, "Origin", "null").Code)
}

// Orders that no share can be made of are refused, and take nothing.
func TestAnAgentRefusesWhatItCannotDo(t *testing.T) {
	a := NewAgent(agentToken, "v1")
	t.Cleanup(a.Close)
	target := startFake(t, faults{}).http.URL
	for want, set := range map[string]func(*portionOrder){
		"invalid order":                           func(o *portionOrder) { o.Run = "" },
		"--target":                                func(o *portionOrder) { o.Target = "ftp://x" },
		"--mode":                                  func(o *portionOrder) { o.Mode = "fast" },
		"--bursts: must be at least 1; got 0":     func(o *portionOrder) { o.Broadcast.Bursts = 0 },
		"--topics: must be at least 1; got 0":     func(o *portionOrder) { o.Topics = nil },
		"6 clients per topic are not a portion":   func(o *portionOrder) { o.PerTopic = 6 },
		"0 clients per topic are not a portion":   func(o *portionOrder) { o.PerTopic = 0 },
		"neither a broadcast nor":                 func(o *portionOrder) { o.Broadcast = nil },
		"--duration: must be positive; got 0s":    func(o *portionOrder) { o.Broadcast, o.Steady = nil, &steadyOrder{PerTopic: 2, Period: time.Second} },
		"open files":                              func(o *portionOrder) { o.Broadcast.Clients, o.PerTopic = 9_000_000, 9_000_000 },
		"--connecting: must be at least 1; got 0": func(o *portionOrder) { o.Connecting = 0 },
	} {
		o := order(target)
		set(&o)
		w := ask(t, a, http.MethodPost, "/v1/runs", o)
		require.Equal(t, http.StatusBadRequest, w.Code, want)
		require.Contains(t, w.Body.String(), want)
	}
	require.Equal(t, http.StatusNotFound, ask(t, a, http.MethodGet, "/v1/runs/r1", nil).Code)
	require.Equal(t, http.StatusAccepted, ask(t, a, http.MethodPost, "/v1/runs", order(target)).Code)
	require.Contains(t, ask(t, a, http.MethodGet, "/v1/agent", nil).Body.String(), `"busy":true`)
	require.Equal(t, http.StatusConflict, ask(t, a, http.MethodPost, "/v1/runs", order(target)).Code, "one at a time")
	require.Equal(t, http.StatusBadRequest, ask(t, a, http.MethodPost, "/v1/runs/r1/start", portionStart{}).Code)
	require.Equal(t, http.StatusBadRequest, ask(t, a, http.MethodPost, "/v1/runs/r1/finish", portionPublished{}).Code)
	for _, wrong := range []portionPublished{
		{Epochs: []string{"k"}, Offsets: [][]uint64{{1, 2}}, Refused: [][]int{nil}},
		{Epochs: []string{"k"}, Offsets: [][]uint64{{1}}, Refused: [][]int{{1}}},
	} {
		require.Equal(t, http.StatusBadRequest, ask(t, a, http.MethodPost, "/v1/runs/r1/finish", wrong).Code)
	}
	require.Equal(t, http.StatusOK, ask(t, a, http.MethodDelete, "/v1/runs/r1", nil).Code)
	require.Contains(t, ask(t, a, http.MethodGet, "/v1/agent", nil).Body.String(), `"busy":false`)
}

// A coordinator that is gone leaves no connections behind.
func TestAnAgentThatHearsNothingGivesUp(t *testing.T) {
	t.Parallel()
	a := NewAgent(agentToken, "v1")
	a.patience = 100 * time.Millisecond
	t.Cleanup(a.Close)
	require.Equal(t, http.StatusAccepted, ask(t, a, http.MethodPost, "/v1/runs", order(startFake(t, faults{}).http.URL)).Code)
	select {
	case <-a.portion.done:
	case <-time.After(patience):
		require.Fail(t, "it goes on")
	}
	require.Contains(t, a.portion.status.Load().Error, "the coordinator sent nothing for 100ms")
}

func TestAStartThatIsTooLateFails(t *testing.T) {
	t.Parallel()
	a := NewAgent(agentToken, "v1")
	t.Cleanup(a.Close)
	require.Equal(t, http.StatusAccepted, ask(t, a, http.MethodPost, "/v1/runs", order(startFake(t, faults{}).http.URL)).Code)
	require.Equal(t, http.StatusOK, ask(t, a, http.MethodPost, "/v1/runs/r1/start", portionStart{At: 1}).Code)
	require.Equal(t, http.StatusBadRequest, ask(t, a, http.MethodPost, "/v1/runs/r1/start", portionStart{At: 2}).Code, "once")
	select {
	case <-a.portion.done:
	case <-time.After(patience):
		require.Fail(t, "it goes on")
	}
	require.Contains(t, a.portion.status.Load().Error, "too late")
	w := ask(t, a, http.MethodPost, "/v1/runs/r1/finish", portionPublished{Epochs: []string{"k"}, Offsets: [][]uint64{nil}, Refused: [][]int{nil}})
	require.Equal(t, http.StatusConflict, w.Code)
	require.True(t, strings.Contains(w.Body.String(), "too late"), w.Body.String())
}
