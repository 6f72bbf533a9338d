package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// escaped returns a path with each of its characters escaped, one at a time, and some others.
func escaped(path string) (all []string) {
	for i := 1; i < len(path); i++ {
		all = append(all, fmt.Sprintf("%s%%%02x%s", path[:i], path[i], path[i+1:]))
	}
	if whole := "/" + strings.ReplaceAll(path[1:], "/", "%2F"); whole != path {
		all = append(all, whole)
	}
	return append(all, path+"%20", path+"%2F", path+"%3Fa=b", path+"\xc3\xa4")
}

// No valid path has an escape, of whatever character. Nothing is served there, for no method
// and to no page: a proxy may have rules for the path as it is usually written, or keep that out
// of its log.
func TestAPathWithAnEscapeIsNotServed(t *testing.T) {
	k := newLaneKit(t, lane.HandOff, "https://app.example")
	session := k.OpenA()
	c := k.CallOnLane()
	const head = "HTTP/1.1\r\nHost: h\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: GET\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
	for _, route := range routes(t, k.api.router) {
		served, path, _ := strings.Cut(route, " ")
		path = strings.NewReplacer("{topic}", "a", "{id}", session).Replace(path)
		for _, spelled := range escaped(path) {
			for _, method := range []string{served, http.MethodOptions} {
				if method == http.MethodHead {
					continue // as GET, but its answer has no body
				}
				c.Send(fmt.Sprintf("%s %s?topic=a&ack=0 %s", method, spelled, head))
				var p wire.Problem
				t.Log(method, spelled)
				require.NoError(t, json.Unmarshal([]byte(c.WantAnswer(http.StatusNotFound)), &p))
				require.Equal(t, wire.CodeNotFound, p.Code)
				require.Contains(t, p.Remedy, "write the path without escapes")
				c.Send(lanetest.Publishing("lane.taken", "0")) // the lane takes the connection again
				c.WantPublished("lane.taken")
			}
		}
	}
	c.Send(lanetest.Publishing("a", "1"))
	require.EqualValues(t, 1, c.WantPublished("a"), "nothing was published")
	c.Send(lanetest.Polling(session, 0))
	c.WantAnswer(http.StatusOK)
}

func TestAnAdminPathWithAnEscapeIsNotServed(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	for _, path := range []string{"/metrics", "/sessions", "/debug/pprof/cmdline", "/debug/pprof/heap"} {
		for _, spelled := range escaped(path) {
			w := askAdmin(cfg, spelled)
			require.Equal(t, http.StatusNotFound, w.Code, spelled)
			require.Contains(t, w.Body.String(), "write the path without escapes")
		}
	}
}
