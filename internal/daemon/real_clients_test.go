package daemon

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// lanes are the settings of lane that take connections over.
var lanes = []string{"handoff", "channel"}

// startLane is start with this setting of lane.
func startLane(t *testing.T, lane string, change func(c *config.Config)) *running {
	t.Helper()
	return start(t, func(c *config.Config) {
		c.Lane = lane
		if change != nil {
			change(c)
		}
	})
}

// calls returns how many calls were served this way. A way without calls has no sample.
func (d *running) calls(call, way string) int {
	d.Helper()
	n, _ := d.metricIfAny(fmt.Sprintf("pubsubd_calls_total{call=%q,way=%q}", call, way))
	return int(n)
}

// wantCalls waits until so many calls are counted. A call is counted once it is answered.
func (d *running) wantCalls(call string, viaHTTP, viaLane int) {
	d.Helper()
	tell := func(viaHTTP, viaLane int) string {
		return fmt.Sprintf("%s: %d by net/http, %d by the lane", call, viaHTTP, viaLane)
	}
	want, got := tell(viaHTTP, viaLane), ""
	for deadline := time.Now().Add(surely); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if got = tell(d.calls(call, "net/http"), d.calls(call, "lane")); got == want {
			return
		}
	}
	require.Equal(d, want, got, "pubsubd_calls_total")
}

// The lane serves the requests of real clients from the second request on. It answers
// them as net/http does.
func TestTheLaneServesWhatRealClientsSend(t *testing.T) {
	for _, lane := range lanes {
		for _, c := range captures(t) {
			t.Run(lane+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				d := startLane(t, lane, func(cfg *config.Config) { cfg.Transport.PollTimeout = surely })
				client := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
				switch {
				case c.publishes():
					d.publishesAsCaptured(client, c)
				case c.stateless():
					d.pollsWithoutSessionAsCaptured(client, c)
				default:
					d.pollsAsCaptured(client, c)
				}
			})
		}
	}
}

// again is how often a request is repeated on its connection.
const again = 4

func (d *running) publishesAsCaptured(client *lanetest.RawConn, c capture) {
	d.Helper()
	request := of(c.text, d.PublicAddr(), "none")
	first := ""
	messages := 1 + again
	if c.once() {
		messages = 1
	}
	for n := range 1 + again {
		head, body := client.Exchange(request)
		require.Regexp(d, fmt.Sprintf(`^{"position":"a\.b@\w+:%d","time":\d{13}}\n$`, min(n+1, messages)), body)
		if n == 0 {
			require.Contains(d, head, "200 OK")
			first = head
		}
		require.Equal(d, first, head)
	}
	d.wantCalls("publish", 1, again)
	_, held := d.get("http://" + d.PublicAddr() + capturedPublishPath)
	require.Equal(d, messages, strings.Count(held, `,"data":{"n":1,"text":"hello"}}`+"\n"), held)
	require.Equal(d, c.once(), strings.Contains(held, `,"id":"6f1c2a54-7a5e-4a0e-9a57-2f3a3c1d9e01",`), held)
}

func (d *running) pollsAsCaptured(client *lanetest.RawConn, c capture) {
	d.Helper()
	d.post("/v1/topics/t/messages", "1")
	d.post("/v1/topics/t/messages", `"two"`)
	session := d.open(`"t@oldest"`).Session
	held := d.held("t")
	request := of(c.text, d.PublicAddr(), session)
	d.wantSameAnswers(client, request, held)
	d.wantCalls("poll", 1, again)

	// The same client is up to date now. Its poll is parked and gets the next message.
	client.Send(strings.Replace(request, "ack=0", "ack=2", 1))
	d.waitParked(1)
	d.post("/v1/topics/t/messages", "3")
	_, body := client.Answer()
	require.Regexp(d, `^{"position":"t@\w+:3","time":\d{13},"data":3}\n$`, body)
	d.wantCalls("poll", 1, again+1)
}

// held returns the frames of a topic's history, as a poll answers them.
func (d *running) held(topic string) string {
	d.Helper()
	_, frames := d.get("http://" + d.PublicAddr() + "/v1/topics/" + topic + "/messages")
	frames, _, isWhole := strings.Cut(frames, `{"done":`)
	require.True(d, isWhole)
	return frames
}

func (d *running) pollsWithoutSessionAsCaptured(client *lanetest.RawConn, c capture) {
	d.Helper()
	d.post("/v1/topics/a/messages", "1")
	d.post("/v1/topics/a/messages", `"two"`)
	held := d.held("a")
	_, epoch, _ := strings.Cut(held, "@")
	epoch, _, _ = strings.Cut(epoch, ":")
	gap := fmt.Sprintf(`{"gap":{"topic":"a","reason":"restarted","after":"a@k3:17","position":"a@%s:0"}}`+"\n", epoch)
	d.wantSameAnswers(client, of(c.text, d.PublicAddr(), "none"), gap+held)
	d.wantCalls("poll", 1, again)

	client.Send(strings.Replace(of(c.text, d.PublicAddr(), "none"), "a@k3:17", "a@"+epoch+":2", 1))
	d.waitParked(1)
	d.post("/v1/topics/a/messages", "3")
	_, body := client.Answer()
	require.Regexp(d, `^{"position":"a@\w+:3","time":\d{13},"data":3}\n$`, body)
	d.wantCalls("poll", 1, again+1)
}

// wantSameAnswers repeats a poll. Each answer has all frames, because none is
// acknowledged.
func (d *running) wantSameAnswers(client *lanetest.RawConn, request, want string) {
	d.Helper()
	first, body := client.Exchange(request)
	require.Contains(d, first, "200 OK")
	require.Contains(d, first, fmt.Sprintf("Content-Length: %d", len(want)))
	require.Equal(d, want, body)
	for range again {
		head, body := client.Exchange(request)
		require.Equal(d, first, head)
		require.Equal(d, want, body)
	}
}

func TestWithoutTheLaneNetHTTPServesAll(t *testing.T) {
	d := startLane(t, "off", nil)
	client := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
	for range 1 + again {
		client.Exchange("POST " + capturedPublishPath + " HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1")
	}
	require.Zero(t, d.calls("publish", "lane"))
}
