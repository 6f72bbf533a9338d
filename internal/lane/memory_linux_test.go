//go:build !race

package lane_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The memory account has what waiting polls, streams and WebSockets add to the heap, with their
// sessions, and idle connections without, within 20 %.
func TestTheAccountOfConnectionsIsNearTheHeap(t *testing.T) {
	const many = 1000
	for name, request := range map[string]func(k *kit) string{
		"long polls": func(k *kit) string { return lanetest.Polling(k.OpenA(), 0) },
		"streams": func(k *kit) string {
			return fmt.Sprintf("GET /v1/sessions/%s/poll?ack=0&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n", k.OpenA())
		},
		"event streams": func(*kit) string { return "GET /v1/sse?topic=a HTTP/1.1\r\nHost: h\r\n\r\n" },
		"WebSockets": func(*kit) string {
			return "GET /v1/ws?topic=a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
		},
		"idle after a poll":    func(*kit) string { return "GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n" },
		"idle after a publish": func(*kit) string { return lanetest.Publishing("a", "1") },
	} {
		t.Run(name, func(t *testing.T) {
			k := serveLane(t, lane.HandOff, lanetest.Settings{Broker: broker.Config{MemoryBudget: 1 << 30}}, nil)
			connect := func(to []net.Conn) {
				for i := range to {
					var err error
					to[i], err = k.Dial()
					require.NoError(t, err)
					_, err = io.WriteString(to[i], request(k))
					require.NoError(t, err)
					if strings.HasPrefix(name, "idle") {
						answer, err := http.ReadResponse(bufio.NewReader(to[i]), nil)
						require.NoError(t, err)
						require.NoError(t, answer.Body.Close())
					}
				}
			}
			_, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, time.Now())
			require.NoError(t, err)
			warm, clients := make([]net.Conn, 100), make([]net.Conn, many)
			connect(warm)
			k.WantOnLane(len(warm))
			heap, used := live(), k.Parts.Broker.Memory().Used()
			connect(clients)
			k.WantOnLane(len(warm) + many)
			const client = 300                                    // what each socket of the test takes
			require.EventuallyWithT(t, func(t *assert.CollectT) { // what the connecting left may still be in use
				assert.InEpsilon(t, k.Parts.Broker.Memory().Used()-used, live()-heap-many*client, 0.2, "bytes counted, and of the heap")
			}, 10*time.Second, 100*time.Millisecond)
			for _, c := range append(warm, clients...) {
				require.NoError(t, c.Close())
			}
			k.WantOnLane(0)
		})
	}
}

// live returns the bytes of the heap that are in use.
func live() int64 {
	runtime.GC()
	runtime.GC() // empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
