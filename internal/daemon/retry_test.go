package daemon

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// The daemon may have accepted a publish whose answer never came. A client with an
// idempotency key may retry it, but a proxy must not.
func TestNoProxyRepeatsAPublish(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		var taken atomic.Int32
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				_, _ = io.Copy(io.Discard, r.Body)
				taken.Add(1)
				panic(http.ErrAbortHandler) // closes the connection without an answer
			}
			_, _ = io.WriteString(w, "[]\n")
		}))
		t.Cleanup(upstream.Close)
		at := strings.TrimPrefix(upstream.URL, "http://")
		p := startProxyTo(t, kind, asShipped, address{public: at, admin: at})
		for n := range 3 { // on a connection that was used, and on new ones
			p.get("/v1/topics")
			resp, err := newClient(t).Post(p.url+"/v1/topics/a/messages", "application/json", strings.NewReader("1"))
			if err == nil { // HAProxy also closes the client's connection if it reused one to the server
				resp.Body.Close()
				require.Contains(t, []int{http.StatusBadGateway, http.StatusServiceUnavailable}, resp.StatusCode)
			}
			require.EqualValues(t, n+1, taken.Load())
		}
	})
}
