package daemon

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// crowd is the number of subscribers that share connections, each with its own topic.
// rounds is the number of messages for each subscriber.
const (
	crowd  = 20
	rounds = 10
)

// member is a subscriber: its topic, its session, and the frames that it received.
type member struct {
	topic, session string
	frames         []string
}

func (d *running) gatherCrowd() []*member {
	d.Helper()
	members := make([]*member, crowd)
	for i := range members {
		topic := fmt.Sprintf("own.t%d", i)
		members[i] = &member{topic: topic, session: d.open(`"` + topic + `"`).Session}
	}
	return members
}

func (m *member) pollTarget() string {
	return fmt.Sprintf("/v1/sessions/%s/poll?ack=%d", m.session, len(m.frames))
}

func (m *member) take(body string) {
	for line := range strings.Lines(body) {
		m.frames = append(m.frames, line)
	}
}

// payload returns the message of a round. It contains the topic, so that a frame at the
// wrong member is noticed.
func (m *member) payload(round int) string { return fmt.Sprintf(`"%s #%d"`, m.topic, round) }

// wantOwnFrames checks that a member got each of its n messages once and in order, and
// nothing else.
func (m *member) wantOwnFrames(t *testing.T, n int) {
	t.Helper()
	require.Len(t, m.frames, n, m.topic)
	for i, frame := range m.frames {
		require.Regexp(t, fmt.Sprintf(`^{"position":"%s@\w+:%d","time":\d+,"data":%s}\n$`, m.topic, i+1, m.payload(i)), frame)
	}
}

// Behind a proxy, many clients share a few connections to the daemon. Each client polls
// and publishes, and gets exactly its own messages.
func TestClientsBehindAProxyGetTheirOwnMessages(t *testing.T) {
	t.Parallel()
	for i, kind := range proxyKinds {
		for j, lane := range append(lanes, "off") {
			if !exhaustive.On() && i != j { // each proxy, and each setting
				continue
			}
			t.Run(kind.name+"/"+lane, func(t *testing.T) {
				t.Parallel()
				d := startLane(t, lane, func(c *config.Config) { c.Transport.PollTimeout = time.Second })
				proxy := startProxy(t, kind, asShipped, d)
				members := d.gatherCrowd()
				var all sync.WaitGroup
				for _, m := range members {
					all.Go(func() { m.pollThrough(t, proxy) })
					all.Go(func() { m.publishThrough(t, proxy) })
				}
				all.Wait()
				for _, m := range members {
					m.wantOwnFrames(t, rounds)
				}
				if lane != "off" {
					require.Positive(t, d.calls("poll", "lane"))
					require.Positive(t, d.calls("publish", "lane"))
				}
			})
		}
	}
}

// pollThrough polls until the member has all its messages.
func (m *member) pollThrough(t *testing.T, proxy *proxied) {
	for polls := 0; len(m.frames) < rounds && polls < 10*rounds; polls++ {
		resp, err := proxy.client.Get(proxy.url + m.pollTarget())
		if err != nil {
			t.Errorf("%s: %v", m.topic, err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: poll: %d %s %v", m.topic, resp.StatusCode, body, err)
			return
		}
		m.take(string(body))
	}
}

func (m *member) publishThrough(t *testing.T, proxy *proxied) {
	for round := range rounds {
		resp, err := proxy.client.Post(proxy.url+"/v1/topics/"+m.topic+"/messages", "application/json", strings.NewReader(m.payload(round)))
		if err != nil {
			t.Errorf("%s: %v", m.topic, err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if want := fmt.Sprintf(`{"position":"%s@`, m.topic); err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), want) {
			t.Errorf("%s: publish: %d %s %v", m.topic, resp.StatusCode, body, err)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Without a proxy, one connection carries the polls and publishes of many sessions in
// turn. Some polls are parked, and some requests are pipelined.
func TestOneConnectionCarriesManySessions(t *testing.T) {
	for _, lane := range append(lanes, "off") {
		t.Run(lane, func(t *testing.T) {
			d := startLane(t, lane, func(c *config.Config) { c.Transport.PollTimeout = surely })
			members := d.gatherCrowd()
			shared := lanetest.DialRaw(t, d.PublicAddr(), 2*aMinute)
			get := func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: pubsubd.example\r\n\r\n" }
			publish := func(m *member, round int) string {
				text := m.payload(round)
				return fmt.Sprintf("POST /v1/topics/%s/messages HTTP/1.1\r\nHost: pubsubd.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", m.topic, len(text), text)
			}

			// Every member publishes. Then the members poll in another order.
			for i := range members {
				_, body := shared.Exchange(publish(members[i], 0))
				require.Contains(t, body, members[i].topic+"@")
			}
			for i := range members {
				m := members[(7*i+3)%crowd]
				_, body := shared.Exchange(get(m.pollTarget()))
				m.take(body)
				m.wantOwnFrames(t, 1)
			}
			// Before each poll, the next member's message is published on another
			// connection. The poll must not return it. The first poll is parked.
			for i, m := range members {
				other := members[(i+1)%crowd]
				if i+1 < crowd {
					d.post("/v1/topics/"+other.topic+"/messages", other.payload(1))
				}
				if i == 0 {
					shared.Send(get(m.pollTarget()))
					d.waitParked(1)
					d.post("/v1/topics/"+m.topic+"/messages", m.payload(1))
				} else {
					shared.Send(get(m.pollTarget()))
				}
				_, body := shared.Answer()
				m.take(body)
				m.wantOwnFrames(t, 2)
			}
			// Requests are pipelined behind a parked poll. None is answered before the poll;
			// then all are answered in order.
			shared.Send(get(members[0].pollTarget()))
			d.waitParked(1)
			for _, m := range members[1:] {
				shared.Send(publish(m, 2))
			}
			for _, m := range members[1:] {
				shared.Send(get(m.pollTarget()))
			}
			d.post("/v1/topics/"+members[0].topic+"/messages", members[0].payload(2))
			_, body := shared.Answer()
			members[0].take(body)
			for _, m := range members[1:] {
				_, body := shared.Answer()
				require.Contains(t, body, m.topic+"@")
			}
			for _, m := range members[1:] {
				_, body := shared.Answer()
				m.take(body)
			}
			for _, m := range members {
				m.wantOwnFrames(t, 3)
			}
			if lane == "off" {
				return
			}
			onShared := crowd + (crowd - 1) // publishes on the shared connection
			require.Eventually(t, func() bool { return d.calls("poll", "lane") == 3*crowd }, surely, 10*time.Millisecond)
			require.Zero(t, d.calls("poll", "net/http"))
			require.GreaterOrEqual(t, d.calls("publish", "lane"), onShared-1, "all but the first, which net/http serves")
		})
	}
}
