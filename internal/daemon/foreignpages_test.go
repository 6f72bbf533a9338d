package daemon

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// foreign are the header lines of requests that a page of another origin makes: by fetch,
// in an old browser, by <img>, by an <iframe> of the same site, and from a file.
var foreign = []string{
	"Origin: " + evilPage + "\r\nSec-Fetch-Site: cross-site", "Origin: " + evilPage, "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: image",
	"Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate", "Origin: null",
}

// A foreign page makes neither topics nor sessions by a GET, on no way and in no protocol.
func TestAGETOfAForeignPageMakesNothing(t *testing.T) {
	for _, lane := range everyWay {
		t.Run(lane, func(t *testing.T) {
			d := startCORS(t, lane, someOrigins...)
			for i, lines := range foreign {
				for _, path := range []string{"/v1/poll?topic=foreign", "/v1/poll?topic=foreign&mode=stream", "/v1/sse?topic=foreign", "/v1/ws?topic=foreign", "/v1/topics/foreign/presence"} {
					request := from(noPage, "GET "+path, "", lines)
					if strings.Contains(path, "/ws") {
						request = from(noPage, "GET "+path, "", lines, upgradeLines)
					}
					for _, before := range []string{"", from(noPage, "GET /v1/poll?topic=a@oldest", "")} {
						c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
						if before != "" {
							c.Ask(before)
						}
						head, body := c.Ask(request)
						require.Contains(t, head, "403 Forbidden", "%d %s", i, path)
						require.Contains(t, body, `"code":"forbidden"`)
						require.Contains(t, body, "cors.origins")
					}
				}
			}
			_, topics := d.get("http://" + d.PublicAddr() + "/v1/topics")
			require.NotContains(t, topics, "foreign")
			require.Zero(t, d.metric("pubsubd_sessions"))
		})
	}
}

// Allowed pages, the daemon's own, a typed address and other clients subscribe by GET.
func TestAGETOfAnAllowedPageSubscribes(t *testing.T) {
	for _, lane := range everyWay {
		d := startCORS(t, lane, someOrigins...)
		for i, lines := range []string{
			"Origin: " + appPage + "\r\nSec-Fetch-Site: cross-site", "Origin: " + localPage, "Origin: http://" + sceneHost, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none", "Accept: */*",
		} {
			c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
			for range 2 {
				head, _ := c.Ask(from(noPage, fmt.Sprintf("GET /v1/poll?topic=t%d", i), "", lines))
				require.Contains(t, head, "200 OK", lines)
			}
		}
	}
}
