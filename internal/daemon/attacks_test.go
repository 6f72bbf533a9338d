package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A storm is one address that repeats one request as fast as the daemon answers.
type storm struct {
	limit string // the limit that must stop it
	ask   func(a *attacker, n int) (method, path, body string)
}

// An attacker is a client at another address, with its own session.
type attacker struct {
	*running
	client  *http.Client
	session string
}

const (
	stormRate  = 10 // per second
	stormBurst = 50
)

// stormRates gives each address the same rate for every kind of call, except connections.
func stormRates(c *config.Config) {
	for _, kind := range limit.Kinds() {
		c.Limit.Rates[kind][limit.Address] = limit.Rate{PerSecond: stormRate, Burst: stormBurst}
	}
	c.Limit.Rates[limit.Connections][limit.Address] = limit.Rate{}
	c.Limit.AddressCalls = 4
	c.Limit.Wait = 200 * time.Millisecond
}

func storms() map[string]storm {
	guess := func() string {
		id := make([]byte, 16)
		rand.Read(id)
		return fmt.Sprintf("%x", id)
	}
	get := func(path string) (string, string, string) { return http.MethodGet, path, "" }
	return map[string]storm{
		"polls of one session": {"rates.polls.address", func(a *attacker, _ int) (string, string, string) {
			return get("/v1/sessions/" + a.session + "/poll?ack=0")
		}},
		"polls without one": {"rates.polls.address", func(*attacker, int) (string, string, string) {
			return get("/v1/poll?topic=a&hello=true")
		}},
		"topics that are published to": {"rates.topics.address", func(_ *attacker, n int) (string, string, string) {
			return http.MethodPost, fmt.Sprintf("/v1/topics/storm.%d/messages", n), "1"
		}},
		"topics that are subscribed to": {"rates.topics.address", func(a *attacker, n int) (string, string, string) {
			return http.MethodPatch, "/v1/sessions/" + a.session, fmt.Sprintf(`{"add":["storm.%d"]}`, n)
		}},
		"guessed ids": {"rates.misses.address", func(_ *attacker, n int) (string, string, string) {
			if n%2 == 0 {
				return get("/v1/sessions/" + guess())
			}
			return get("/v1/sessions/" + guess() + "/poll?ack=0")
		}},
		"changes": {"rates.requests.address", func(a *attacker, n int) (string, string, string) {
			names := topicsNamed(20)
			if n%2 == 0 {
				return http.MethodPatch, "/v1/sessions/" + a.session, `{"add":[` + names + `]}`
			}
			return http.MethodPatch, "/v1/sessions/" + a.session, `{"remove":[` + names + `]}`
		}},
		"sessions": {"rates.sessions.address", func(*attacker, int) (string, string, string) {
			return http.MethodPost, "/v1/sessions", `{"topics":["a"]}`
		}},
		"publishes": {"rates.publishes.address", func(*attacker, int) (string, string, string) {
			return http.MethodPost, "/v1/topics/noise/messages", `"` + strings.Repeat("x", 10<<10) + `"`
		}},
	}
}

// An address that sends requests as fast as it can does not affect other clients.
func TestNoAttackDelaysOtherClients(t *testing.T) {
	for name, s := range storms() {
		t.Run(name, func(t *testing.T) {
			d := start(t, stormRates)
			client, err := pubsub.New("http://" + d.PublicAddr())
			require.NoError(t, err)
			defer client.Close()
			sub, err := client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow("calm")}, pubsub.WithTransport(pubsub.LongPoll))
			require.NoError(t, err)
			defer sub.Close()
			a := d.attacker()
			ctx, over := context.WithCancel(t.Context())
			defer over()
			begun, passed := time.Now(), make(chan int, 1)
			go func() { passed <- a.rage(ctx, s) }()
			require.Eventually(t, func() bool {
				refused, _ := d.metricIfAny(`pubsubd_limited_total{limit="` + s.limit + `"}`)
				return refused > 0
			}, surely, 10*time.Millisecond)
			for n := range 20 {
				_, err := client.PublishJSON(t.Context(), "calm", n)
				require.NoError(t, err)
				m, err := sub.Next(t.Context())
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint(n), string(m.Message.Data))
				time.Sleep(10 * time.Millisecond) // the storm continues meanwhile
			}
			over()
			require.LessOrEqual(t, <-passed, stormBurst+int(stormRate*time.Since(begun).Seconds())+1)
		})
	}
}

// attacker returns a client that connects from another loopback address.
func (d *running) attacker() *attacker {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	network := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 4}
	d.Cleanup(network.CloseIdleConnections)
	a := &attacker{running: d, client: &http.Client{Transport: network}}
	resp, err := a.client.Post("http://"+d.PublicAddr()+"/v1/sessions", "application/json", strings.NewReader(`{"topics":["a"]}`))
	require.NoError(d, err)
	defer resp.Body.Close()
	var opened wire.SessionOpened
	require.NoError(d, json.NewDecoder(resp.Body).Decode(&opened))
	a.session = opened.Session
	return a
}

// rage sends requests on four connections until ctx ends. It returns how many were not
// refused.
func (a *attacker) rage(ctx context.Context, s storm) (passed int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	asked := 0
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				asked++
				n := asked
				mu.Unlock()
				if status := a.ask(ctx, s, n); status != 0 && status != http.StatusTooManyRequests {
					mu.Lock()
					passed++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return passed
}

func (a *attacker) ask(ctx context.Context, s storm, n int) (status int) {
	method, path, body := s.ask(a, n)
	r, err := http.NewRequestWithContext(ctx, method, "http://"+a.PublicAddr()+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// The sweep forgets an address without connections once its rates have recovered.
func TestAddressesAreForgotten(t *testing.T) {
	d := start(t, func(c *config.Config) { c.Broker.HistoryAge = time.Hour })
	d.attacker().client.CloseIdleConnections()
	require.Positive(t, d.metric("pubsubd_addresses"))
	d.client.CloseIdleConnections()
	now := time.Now()
	require.Eventually(t, func() bool {
		now = now.Add(time.Hour)
		d.limiter.Sweep(now)
		return d.metric("pubsubd_addresses") == 0
	}, surely, 10*time.Millisecond)
}
