package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// kept are listening sockets that the test keeps open, as systemd does with its socket units.
type kept struct {
	names []string
	files []*os.File
	args  []string
}

// keep opens a socket for each of these listeners.
func keep(t *testing.T, names ...string) *kept {
	t.Helper()
	k := &kept{names: names}
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		f, err := l.(*net.TCPListener).File()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		t.Cleanup(func() { _ = f.Close() })
		k.files = append(k.files, f)
		k.args = append(k.args, "--listen-"+name+"="+l.Addr().String())
	}
	return k
}

// serve starts a daemon with the sockets. The shell knows the process id that the daemon will
// have.
func (k *kept) serve(t *testing.T, args ...string) *served {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, binary)
	cmd.ExtraFiles = k.files
	env := []string{fmt.Sprintf("LISTEN_FDS=%d", len(k.files)), "LISTEN_FDNAMES=" + strings.Join(k.names, ":")}
	return startServe(t, cmd, env, append(k.args, args...)...)
}

// The daemon serves on the sockets that the service manager passes, each by its name.
func TestTheServiceManagerPassesSockets(t *testing.T) {
	k := keep(t, "tcp", "public", "admin")
	s := k.serve(t)
	s.waitReady()
	require.Equal(t, "--listen-public="+strings.TrimPrefix(s.public, "http://"), k.args[1])
	s.post("/v1/topics/a/messages", "1")
	s.waitForMetric(`pubsubd_topics 1`)
	client, err := pubsub.New(s.public, pubsub.WithTCPAddr(s.tcp, nil))
	require.NoError(t, err)
	defer client.Close()
	sub, err := client.Subscribe(t.Context(), []wire.Start{pubsub.FromOldest("a")}, pubsub.WithTransport(pubsub.TCP))
	require.NoError(t, err)
	defer sub.Close()
	for item, err := range sub.All(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, "1", string(item.Message.Data))
		break
	}
	s.signal(syscall.SIGTERM)
	s.wantEnd("drained")
}

func TestASocketOfAnUnknownNameIsRefused(t *testing.T) {
	k := keep(t, "public", "tcp")
	k.names[1], k.args = "pubsubd-tcp.socket", k.args[:1]
	s := k.serve(t)
	require.Equal(t, 1, s.exit().ExitCode())
	require.Contains(t, s.stderr.String(), "FileDescriptorName=")
}

// An upgrade is a way to replace a running daemon.
type upgrade struct {
	first func(t *testing.T) *served
	next  func(t *testing.T, old *served) *served
}

// With sockets that the service manager keeps, the next daemon starts when the old one has
// ended.
func bySockets(args ...string) func(t *testing.T) upgrade {
	return func(t *testing.T) upgrade {
		k := keep(t, "public")
		args := append([]string{"--store", filepath.Join(t.TempDir(), "store")}, args...)
		first := func(t *testing.T) *served {
			s := k.serve(t, args...)
			s.waitReady()
			return s
		}
		return upgrade{first: first, next: func(t *testing.T, old *served) *served {
			old.signal(syscall.SIGTERM)
			old.wantEnd("the log on disk was closed")
			return first(t)
		}}
	}
}

// With listen.reuseport the next daemon listens beside the old one, and waits for its files.
func byReusePort(args ...string) func(t *testing.T) upgrade {
	return func(t *testing.T) upgrade {
		args := append([]string{"--listen-reuseport", "--store", filepath.Join(t.TempDir(), "store")}, args...)
		return upgrade{
			first: func(t *testing.T) *served { return serveProcess(t, args...) },
			next: func(t *testing.T, old *served) *served {
				s := startServe(t, exec.Command(binary), []string{}, append([]string{
					"--listen-public=" + strings.TrimPrefix(old.public, "http://"), "--listen-admin=" + strings.TrimPrefix(old.admin, "http://"),
				}, args...)...)
				require.Eventually(t, func() bool { return strings.Contains(s.stderr.String(), "stop that daemon now") }, patience, 5*time.Millisecond)
				old.signal(syscall.SIGTERM)
				old.wantEnd("the log on disk was closed")
				s.waitReady()
				return s
			},
		}
	}
}

// While clients subscribe, publish and connect, the binary is replaced several times. The
// kernel refuses no connection and resets none. No subscriber misses a message, has one twice,
// or gets a gap.
func TestUpgradesRefuseNobody(t *testing.T) {
	clients, upgrades := 20, 1
	if exhaustive.On() {
		clients, upgrades = 500, 5
	}
	if text := os.Getenv("UPGRADE_CLIENTS"); text != "" { // make upgrade
		var err error
		clients, err = strconv.Atoi(text)
		require.NoError(t, err)
		upgrades = 5
	}
	for name, way := range map[string]func(t *testing.T) upgrade{
		"sockets":    bySockets("--history-messages=100000", "--history-age=1h"),
		"reuse port": byReusePort("--history-messages=100000", "--history-age=1h"),
	} {
		t.Run(name, func(t *testing.T) {
			way := way(t)
			s := way.first(t)
			a := newAudience(t, s.public, clients)
			stop := a.load(s.public)
			for range upgrades {
				a.waitForMore()
				s = way.next(t, s)
			}
			a.waitForMore()
			stop()
			a.wantAll()
			t.Logf("%d upgrades; %s", upgrades, a.counts())
			require.Zero(t, a.refused.Load(), "refused at connect")
			require.Zero(t, a.reset.Load(), "reset at connect")
			require.Zero(t, a.failed.Load(), "other failures to connect")
			require.Zero(t, a.unanswered.Load(), "requests on new connections without an answer")
			require.Zero(t, a.gaps.Load()+a.lost.Load()+a.twice.Load(), "gaps, lost messages, and messages had twice")
			a.close()
			s.signal(syscall.SIGTERM)
			s.wantEnd("drained")
		})
	}
}

// An audience is many subscribers, each of one topic. The messages of a topic are the numbers
// 1, 2, 3, ….
type audience struct {
	*testing.T
	client *pubsub.Client
	subs   []*pubsub.Subscription
	last   []atomic.Int64 // by subscriber: the number of the newest message that it had
	said   []atomic.Int64 // by topic: the number of the newest message that was published
	all    sync.WaitGroup

	dials, refused, reset, failed atomic.Int64 // attempts to connect, and those without success
	visits, unanswered            atomic.Int64 // requests on connections of their own
	longest                       atomic.Int64 // the longest of these, in nanoseconds
	delivered, gaps, lost, twice  atomic.Int64
}

// topicOf has 50 subscribers, so a message goes to as many.
const perTopic = 50

func (a *audience) topic(i int) string { return fmt.Sprintf("room.%d", i) }

func newAudience(t *testing.T, public string, size int) *audience {
	t.Helper()
	a := &audience{T: t, subs: make([]*pubsub.Subscription, size), last: make([]atomic.Int64, size), said: make([]atomic.Int64, (size+perTopic-1)/perTopic)}
	var err error
	a.client, err = pubsub.New(public, pubsub.WithHTTPClient(&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: a.dial}}), pubsub.WithPublishRetry(time.Minute), pubsub.WithMaxBackoff(time.Second))
	require.NoError(t, err)
	kinds := [][]pubsub.SubscribeOption{
		{pubsub.WithTransport(pubsub.LongPoll)}, {pubsub.WithTransport(pubsub.HTTPStream)}, {pubsub.WithTransport(pubsub.SSE)}, {pubsub.Stateless()},
	}
	var opening sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range size {
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			start := []wire.Start{pubsub.FromOldest(a.topic(i / perTopic))}
			sub, err := a.client.Subscribe(context.Background(), start, append(kinds[i%len(kinds)], pubsub.WithOpenTimeout(patience))...)
			if err != nil {
				a.Errorf("subscriber %d: %v", i, err)
				return
			}
			a.subs[i] = sub
			a.all.Go(func() { a.listen(i, sub) })
		})
	}
	opening.Wait()
	require.False(t, t.Failed())
	t.Cleanup(a.close)
	return a
}

// dial connects, and counts its attempts.
func (a *audience) dial(ctx context.Context, network, address string) (net.Conn, error) {
	a.dials.Add(1)
	c, err := (&net.Dialer{Timeout: 2 * patience}).DialContext(ctx, network, address)
	switch {
	case err == nil, ctx.Err() != nil: // no longer wanted
	case errors.Is(err, syscall.ECONNREFUSED):
		a.refused.Add(1)
	case errors.Is(err, syscall.ECONNRESET):
		a.reset.Add(1)
	default:
		a.failed.Add(1)
	}
	return c, err
}

func (a *audience) listen(i int, sub *pubsub.Subscription) {
	for item, err := range sub.All(context.Background()) {
		switch {
		case errors.Is(err, pubsub.ErrClosed):
			return
		case err != nil:
			a.Errorf("subscriber %d: %v", i, err)
			return
		case item.Gap != nil:
			a.gaps.Add(1)
			continue
		}
		var n int64
		if err := json.Unmarshal(item.Message.Data, &n); err != nil {
			a.Errorf("subscriber %d: %s: %v", i, item.Message.Data, err)
			return
		}
		a.delivered.Add(1)
		switch last := a.last[i].Load(); {
		case n <= last:
			a.twice.Add(1)
		default:
			a.lost.Add(n - last - 1)
			a.last[i].Store(n)
		}
	}
}

// load publishes to the topics in turn, and connects again and again, until stop is called.
func (a *audience) load(public string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var loading sync.WaitGroup
	loading.Go(func() {
		for n := int64(1); ctx.Err() == nil; n++ {
			for topic := range a.said {
				_, err := a.client.PublishJSON(context.Background(), a.topic(topic), n, pubsub.WithIdempotencyKey(fmt.Sprint(n)))
				if err != nil {
					a.Errorf("message %d of %s: %v", n, a.topic(topic), err)
					return
				}
				a.said[topic].Store(n)
			}
			time.Sleep(5 * time.Millisecond) // a pace at which the machine has time for the daemons
		}
	})
	for i := range 8 / exhaustive.Step(4) {
		var pause time.Duration
		if i == 0 {
			pause = 400 * time.Millisecond // longer than a daemon that ends waits for a first byte
		}
		loading.Go(func() {
			for ctx.Err() == nil {
				a.visit(public, pause)
			}
		})
	}
	return func() { cancel(); loading.Wait() }
}

// visit makes one request on a connection of its own, a pause after it has connected. A draining
// daemon answers some with 503, even those that come after it has ended.
func (a *audience) visit(public string, pause time.Duration) {
	begun := time.Now()
	err := a.request(public, pause)
	a.visits.Add(1)
	if err != nil {
		a.unanswered.Add(1)
		a.Logf("a visitor got no answer after %v: %v", time.Since(begun), err)
	}
	for took := int64(time.Since(begun)); ; {
		if most := a.longest.Load(); took <= most || a.longest.CompareAndSwap(most, took) {
			return
		}
	}
}

// request connects, makes a request and reads the answer. http.Client would drop an answer that it
// finds on a connection before it has written the request.
func (a *audience) request(public string, pause time.Duration) error {
	c, err := a.dial(context.Background(), "tcp", strings.TrimPrefix(public, "http://"))
	if err != nil {
		return err
	}
	defer c.Close()
	req, err := http.NewRequest(http.MethodGet, public+"/v1/topics/"+a.topic(0)+"/messages?limit=1", nil)
	require.NoError(a, err)
	req.Close = true
	time.Sleep(pause) // a slow client: nothing is awaited
	if err := req.Write(c); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// waitForMore waits until every subscriber has had something new.
func (a *audience) waitForMore() {
	a.Helper()
	before := make([]int64, len(a.last))
	for i := range before {
		before[i] = a.last[i].Load()
	}
	a.eventually(func(i int) bool { return a.last[i].Load() > before[i] })
}

// wantAll waits until every subscriber has had the newest message.
func (a *audience) wantAll() {
	a.Helper()
	a.eventually(func(i int) bool { return a.last[i].Load() >= a.said[i/perTopic].Load() })
}

// eventually waits until something is true of each subscriber.
func (a *audience) eventually(is func(i int) bool) {
	a.Helper()
	i := 0
	require.Eventually(a, func() bool {
		for i < len(a.last) && is(i) {
			i++
		}
		return i == len(a.last)
	}, 4*patience, 5*time.Millisecond, "%s", a.counts())
}

func (a *audience) counts() string {
	var published int64
	for i := range a.said {
		published += a.said[i].Load()
	}
	return fmt.Sprintf("%d subscribers; %d connections made, %d refused, %d reset, %d failed; "+
		"%d requests on connections of their own, %d unanswered, the longest took %v; "+
		"%d messages published, %d delivered, %d lost, %d twice, %d gaps",
		len(a.subs), a.dials.Load(), a.refused.Load(), a.reset.Load(), a.failed.Load(),
		a.visits.Load(), a.unanswered.Load(), time.Duration(a.longest.Load()).Round(time.Millisecond),
		published, a.delivered.Load(), a.lost.Load(), a.twice.Load(), a.gaps.Load())
}

// close ends the subscriptions, all at the same time: each may wait for a daemon that has ended.
// It may be called again.
func (a *audience) close() {
	var closing sync.WaitGroup
	for _, sub := range a.subs {
		if sub != nil {
			closing.Go(func() { sub.Close() })
		}
	}
	closing.Wait()
	a.all.Wait()
}
