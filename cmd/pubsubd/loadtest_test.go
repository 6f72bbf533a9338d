package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Each scenario, small, against a server that the command starts itself.
func TestLoadTestsStartTheirOwnServer(t *testing.T) {
	for name, args := range map[string][]string{
		"broadcast":           {"broadcast", "--clients=20", "--period=50ms", "--bursts=3"},
		"broadcast stream":    {"broadcast", "--clients=20", "--period=50ms", "--bursts=3", "--mode=stream"},
		"broadcast stateless": {"broadcast", "--clients=20", "--period=50ms", "--bursts=3", "--mode=multiple", "--stateless"},
		"collab":              {"collab", "--topics=5", "--clients-per-topic=3", "--delay=20ms", "--rounds=3"},
		"steady":              {"collab", "--pattern=steady", "--topics=5", "--period=100ms", "--warmup=100ms", "--duration=500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "result.json")
			r := run(t, nil, append([]string{"loadtest", "--json", file, "--settle=10ms"}, args...)...)
			if r.code != loadtest.ExitGeneratorBound { // a busy machine may say so
				require.Zero(t, r.code, "%s\n%s", r.stdout, r.stderr)
			}
			require.Contains(t, r.stdout, "verdict")
			require.Contains(t, r.stderr, "started a server as process")
			require.NotContains(t, r.stderr, "\r", "plain lines where there is no terminal")
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var result loadtest.Result
			require.NoError(t, json.Unmarshal(text, &result))
			require.Positive(t, result.Deliveries.Expected)
			require.Equal(t, result.Deliveries.Expected, result.Deliveries.Delivered)
			require.Zero(t, result.Deliveries.Duplicates+result.Deliveries.Disordered)
			require.Positive(t, result.Server.ResidentEndBytes)
			require.Positive(t, result.Server.BytesOut)
			require.Equal(t, "v0.0.0-test", result.Server.Build["version"])
		})
	}
}

func TestLoadTestsExitAsTheyFound(t *testing.T) {
	small := []string{"--clients=5", "--period=50ms", "--bursts=2", "--settle=0s"}
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"objective missed", append([]string{"broadcast", "--max-p99=1us"}, small...), loadtest.ExitMissed, "p99 of latency"},
		{"nobody there", append([]string{"broadcast", "--target=http://127.0.0.1:1"}, small...), loadtest.ExitFailed, "refused"},
		{"no such mode", []string{"broadcast", "--mode=fast"}, exitUsage, "--mode"},
		{"no clients", []string{"broadcast", "--clients=0"}, exitUsage, "--clients"},
		{"no such pattern", []string{"collab", "--pattern=chaos"}, exitUsage, "--pattern"},
		{"a flag of the other pattern", []string{"collab", "--pattern=steady", "--rounds=3"}, exitUsage, "--rounds"},
		{"more clients than open files", []string{"broadcast", "--clients=100000000"}, loadtest.ExitFailed, "ulimit -n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, nil, append([]string{"loadtest"}, c.args...)...)
			require.Equal(t, c.code, r.code, "%s\n%s", r.stdout, r.stderr)
			require.Contains(t, r.stdout+r.stderr, c.says)
		})
	}
}

// The load generator's lean connections see the same frames as the Go client, in
// every mode: messages of every form, and a gap.
func TestLeanConnectionsSeeWhatTheGoClientSees(t *testing.T) {
	s := serveProcess(t)
	for _, mode := range client.Modes() {
		for _, stateless := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stateless=%t", mode, stateless), func(t *testing.T) {
				topic := fmt.Sprintf("lean.%s.%t", mode, stateless)
				lean := s.subscribeLeanly(t, topic, mode, stateless)
				full := s.subscribeFully(t, topic, mode, stateless)
				want := s.publishAllForms(t, topic)
				require.Equal(t, want, full(len(want)), "the Go client")
				require.Equal(t, want, lean(len(want)), "the lean connection")
			})
		}
	}
}

// publishAllForms publishes messages of every form and returns what subscribers
// must see: position and payload.
func (s *served) publishAllForms(t *testing.T, topic string) []string {
	t.Helper()
	c, err := pubsub.New(s.public)
	require.NoError(t, err)
	defer c.Close()
	var want []string
	publish := func(mediaType, body, payload string, options ...pubsub.PublishOption) {
		p, err := c.Publish(t.Context(), topic, mediaType, []byte(body), options...)
		require.NoError(t, err)
		want = append(want, p.Position.String()+" "+payload)
	}
	same := func(mediaType, body string, options ...pubsub.PublishOption) {
		publish(mediaType, body, body, options...)
	}
	same("", `["one","two"]`)
	publish("", "{ \"n\" : 1.50 }", `{"n":1.50}`)
	same("", `"ü \u0000 \" \\ end"`)
	same("", `null`)
	same("text/plain", "plain")
	same("text/plain; charset=utf-8", "ü\n\"\\\x01")
	same("text/plain", "")
	same("image/png", "\x89PNG\x00\xff")
	same("", `1`, pubsub.WithKey(`key "quoted"`))
	same("", `"`+strings.Repeat("long ", 12_000)+`"`)
	return want
}

func (s *served) subscribeFully(t *testing.T, topic string, mode client.Mode, stateless bool) func(n int) []string {
	t.Helper()
	c, err := pubsub.New(s.public)
	require.NoError(t, err)
	options := []pubsub.SubscribeOption{pubsub.WithMode(pubsub.Mode(mode))}
	if stateless {
		options = append(options, pubsub.Stateless())
	}
	sub, err := c.Subscribe(t.Context(), []wire.Start{pubsub.Now(topic)}, options...)
	require.NoError(t, err)
	t.Cleanup(func() { sub.Close(); c.Close() })
	return func(n int) (got []string) {
		for range n {
			item, err := sub.Next(t.Context())
			require.NoError(t, err)
			require.Nil(t, item.Gap)
			got = append(got, item.Position().String()+" "+string(item.Message.Data))
		}
		return got
	}
}

// leanEvents notes what a lean subscriber is told.
type leanEvents struct {
	ready chan struct{}
	got   chan string
}

func (e *leanEvents) Ready(*client.Subscriber, wire.Position) { close(e.ready) }
func (e *leanEvents) Message(_ *client.Subscriber, f *client.Frame, _ time.Duration) error {
	e.got <- f.Position.String() + " " + string(f.Data)
	return nil
}
func (e *leanEvents) Gap(_ *client.Subscriber, g *wire.Gap) { e.got <- "gap " + g.Position.String() }
func (e *leanEvents) Closed(*client.Subscriber, error)      {}

func (s *served) subscribeLeanly(t *testing.T, topic string, mode client.Mode, stateless bool) func(n int) []string {
	t.Helper()
	target, err := url.Parse(s.public)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", target.Host)
	require.NoError(t, err)
	events := &leanEvents{ready: make(chan struct{}), got: make(chan string, 100)}
	ended := make(chan error, 1)
	go func() {
		ended <- drive(conn, client.NewKit(target.Host, mode, stateless).NewSubscriber(0, topic, events))
	}()
	t.Cleanup(func() {
		conn.Close()
		require.ErrorIs(t, <-ended, net.ErrClosed)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case <-events.ready:
	case <-ctx.Done():
		require.Fail(t, "the lean subscriber is not ready")
	}
	return func(n int) (got []string) {
		for range n {
			select {
			case word := <-events.got:
				got = append(got, word)
			case <-time.After(10 * time.Second):
				return got
			}
		}
		return got
	}
}

// drive is the simplest loop for one machine.
func drive(conn net.Conn, m *client.Subscriber) error {
	if _, err := conn.Write(m.Connected(0)); err != nil {
		return err
	}
	buffer := make([]byte, 1000) // small, so that frames come in pieces
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		request, err := m.Receive(0, buffer[:n])
		if err != nil {
			return err
		}
		if _, err := conn.Write(request); err != nil {
			return err
		}
	}
}
