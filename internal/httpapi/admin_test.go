package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// askAdmin sends a GET request to the admin listener of a daemon built from cfg.
func askAdmin(cfg parts, path string) *httptest.ResponseRecorder {
	admin := NewAdmin(cfg.Metrics.Registry, cfg.Sessions, func() string { return "draining" }, everyHost(), zap.NewAtomicLevel())
	w := httptest.NewRecorder()
	admin.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

func TestOperatorsSeeSessionsWithoutTheirIDs(t *testing.T) {
	cfg := newParts(settings{})
	defer cfg.Broker.Close()
	first, _, err := cfg.Sessions.Open(context.Background(), session.Opening{Topics: []wire.Start{{Topic: "a"}}}, time.Now())
	require.NoError(t, err)
	_, _, err = cfg.Sessions.Open(context.Background(), session.Opening{}, time.Now())
	require.NoError(t, err)

	w := askAdmin(cfg, "/sessions")
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.NotContains(t, w.Body.String(), first.ID()[:6])
	var list wire.SessionList
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	require.Equal(t, 2, list.Open)
	require.Len(t, list.Sessions, 2)

	w = askAdmin(cfg, "/sessions?limit=1&sort=idle")
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	require.Equal(t, 2, list.Open)
	require.Len(t, list.Sessions, 1)
}

func TestSessionsAreListedInKnownOrdersAndBounds(t *testing.T) {
	cfg := newParts(settings{})
	defer cfg.Broker.Close()
	for query, remedy := range map[string]string{
		"?sort=size":          "lag or idle",
		"?sort=lag&sort=idle": "once",
		"?limit=0":            "from 1 to 1000",
		"?limit=1001":         "from 1 to 1000",
		"?limit=%zz":          "percent-encode",
	} {
		w := askAdmin(cfg, "/sessions"+query)
		require.Equal(t, http.StatusBadRequest, w.Code, query)
		require.Equal(t, wire.ProblemType, w.Header().Get("Content-Type"))
		var p wire.Problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Equal(t, wire.CodeInvalidRequest, p.Code)
		require.Contains(t, p.Remedy, remedy)
	}
}

func TestTheAdminListenerClosesAfterARequestThatCouldBeFramedInTwoWays(t *testing.T) {
	cfg := newParts(settings{})
	defer cfg.Broker.Close()
	admin := NewAdmin(cfg.Metrics.Registry, cfg.Sessions, func() string { return "" }, everyHost(), zap.NewAtomicLevel())
	r := httptest.NewRequest("GET", "/livez", nil)
	r.TransferEncoding = []string{"chunked"}
	w := httptest.NewRecorder()
	admin.ServeHTTP(w, r)
	require.Equal(t, "close", w.Header().Get("Connection"))
}
