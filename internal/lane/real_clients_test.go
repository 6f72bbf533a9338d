package lane_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// lanes are the ways that take connections over.
var lanes = []lane.Way{lane.HandOff, lane.Channel}

// calls returns how many calls were served this way.
func (k *kit) calls(call, way string) int {
	k.Helper()
	return int(k.Counted("pubsubd_calls_total", call, way))
}

// wantCalls waits until net/http has served one call, and the lane so many. A call is
// counted once it is answered.
func (k *kit) wantCalls(call string, viaLane int) {
	k.Helper()
	k.Want(viaLane, func() int { return k.calls(call, "lane") }, call+" by the lane")
	require.Equal(k, 1, k.calls(call, "net/http"))
}

// The lane serves the requests of real clients from the second request on. It answers
// them as net/http does.
func TestTheLaneServesWhatRealClientsSend(t *testing.T) {
	for i, way := range lanes {
		for j, c := range captures(t) {
			if (i+j)%exhaustive.Step(len(lanes)) != 0 {
				continue
			}
			t.Run(string(way)+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				k := serveLane(t, way, lanetest.Settings{Transport: transport.Config{PollTimeout: lanetest.Surely}}, nil)
				client := lanetest.DialRaw(t, k.Addr(), time.Minute)
				switch {
				case c.publishes():
					k.publishesAsCaptured(client, c)
				case c.stateless():
					k.pollsWithoutSessionAsCaptured(client, c)
				default:
					k.pollsAsCaptured(client, c)
				}
			})
		}
	}
}

// again is how often a request is repeated on its connection.
const again = 4

func (k *kit) publishesAsCaptured(client *lanetest.RawConn, c capture) {
	k.Helper()
	request := of(c.text, k.Addr(), "none")
	first := ""
	messages := 1 + again
	if c.once() {
		messages = 1
	}
	for n := range 1 + again {
		head, body := client.Exchange(request)
		require.Regexp(k, fmt.Sprintf(`^{"position":"a\.b@\w+:%d","time":\d{13}}\n$`, min(n+1, messages)), body)
		if n == 0 {
			require.Contains(k, head, "200 OK")
			first = head
		}
		require.Equal(k, first, head)
	}
	k.wantCalls("publish", again)
	_, held := k.Get("GET", capturedPublishPath, "")
	require.Equal(k, messages, strings.Count(held, `,"data":{"n":1,"text":"hello"}}`+"\n"), held)
	require.Equal(k, c.once(), strings.Contains(held, `,"id":"6f1c2a54-7a5e-4a0e-9a57-2f3a3c1d9e01",`), held)
}

func (k *kit) pollsAsCaptured(client *lanetest.RawConn, c capture) {
	k.Helper()
	k.Publish("t", "1")
	k.Publish("t", `"two"`)
	session := k.Open(`{"topics":["t@oldest"]}`).Session
	held := k.held("t")
	request := of(c.text, k.Addr(), session)
	k.wantSameAnswers(client, request, held)
	k.wantCalls("poll", again)

	// The same client is up to date now. Its poll is parked and gets the next message.
	client.Send(strings.Replace(request, "ack=0", "ack=2", 1))
	k.WantParked(1)
	k.Publish("t", "3")
	_, body := client.Answer()
	require.Regexp(k, `^{"position":"t@\w+:3","time":\d{13},"data":3}\n$`, body)
	k.wantCalls("poll", again+1)
}

// held returns the frames of a topic's history, as a poll answers them.
func (k *kit) held(topic string) string {
	k.Helper()
	_, frames := k.Get("GET", "/v1/topics/"+topic+"/messages", "")
	frames, _, isWhole := strings.Cut(frames, `{"done":`)
	require.True(k, isWhole)
	return frames
}

func (k *kit) pollsWithoutSessionAsCaptured(client *lanetest.RawConn, c capture) {
	k.Helper()
	k.Publish("a", "1")
	k.Publish("a", `"two"`)
	held := k.held("a")
	_, epoch, _ := strings.Cut(held, "@")
	epoch, _, _ = strings.Cut(epoch, ":")
	gap := fmt.Sprintf(`{"gap":{"topic":"a","reason":"restarted","after":"a@k3:17","position":"a@%s:0"}}`+"\n", epoch)
	k.wantSameAnswers(client, of(c.text, k.Addr(), "none"), gap+held)
	k.wantCalls("poll", again)

	client.Send(strings.Replace(of(c.text, k.Addr(), "none"), "a@k3:17", "a@"+epoch+":2", 1))
	k.WantParked(1)
	k.Publish("a", "3")
	_, body := client.Answer()
	require.Regexp(k, `^{"position":"a@\w+:3","time":\d{13},"data":3}\n$`, body)
	k.wantCalls("poll", again+1)
}

// wantSameAnswers repeats a poll. Each answer has all frames, because none is
// acknowledged.
func (k *kit) wantSameAnswers(client *lanetest.RawConn, request, want string) {
	k.Helper()
	first, body := client.Exchange(request)
	require.Contains(k, first, "200 OK")
	require.Contains(k, first, fmt.Sprintf("Content-Length: %d", len(want)))
	require.Equal(k, want, body)
	for range again {
		head, body := client.Exchange(request)
		require.Equal(k, first, head)
		require.Equal(k, want, body)
	}
}

func TestWithoutTheLaneNetHTTPServesAll(t *testing.T) {
	k := newLaneKit(t, lane.Off)
	client := lanetest.DialRaw(t, k.Addr(), time.Minute)
	for range 1 + again {
		client.Exchange("POST " + capturedPublishPath + " HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1")
	}
	require.Zero(t, k.calls("publish", "lane"))
}
