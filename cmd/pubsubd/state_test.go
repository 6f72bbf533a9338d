package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A crowd is subscribers of all topics, of every kind, each with all that it was
// handed.
type crowd struct {
	*testing.T
	topics []string

	mu  sync.Mutex
	had []map[string][]pubsub.Item // by subscriber and topic
}

func gather(t *testing.T, s *served, subscribers, topics int) *crowd {
	t.Helper()
	c := &crowd{T: t}
	var starts []wire.Start
	for i := range topics {
		c.topics = append(c.topics, fmt.Sprintf("room.%d", i))
		starts = append(starts, pubsub.FromNow(c.topics[i]))
	}
	client, err := pubsub.New(s.public, pubsub.WithMaxBackoff(500*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	kinds := [][]pubsub.SubscribeOption{
		{pubsub.WithMode(pubsub.Batch)}, {pubsub.WithMode(pubsub.Stream)}, {pubsub.WithMode(pubsub.Multiple)},
		{pubsub.Stateless()}, {pubsub.Stateless(), pubsub.WithMode(pubsub.Stream)}, {pubsub.WithTransport(pubsub.WebSocket)},
	}
	for i := range subscribers {
		sub, err := client.Subscribe(context.Background(), starts, kinds[i%len(kinds)]...)
		require.NoError(t, err)
		c.had = append(c.had, map[string][]pubsub.Item{})
		var listening sync.WaitGroup
		listening.Go(func() { c.listen(i, sub) })
		t.Cleanup(func() { sub.Close(); listening.Wait() })
	}
	return c
}

func (c *crowd) listen(i int, sub *pubsub.Subscription) {
	for item, err := range sub.All(context.Background()) {
		if err != nil {
			if !errors.Is(err, pubsub.ErrClosed) {
				c.Errorf("subscriber %d: %v", i, err)
			}
			return
		}
		c.mu.Lock()
		topic := item.Position().Topic
		c.had[i][topic] = append(c.had[i][topic], item)
		c.mu.Unlock()
	}
}

// saying is what a subscriber had of a topic: "1=1 2=2 gap(restarted) 1=3", the
// offset and the payload of each message.
func saying(items []pubsub.Item) string {
	var words []string
	for _, item := range items {
		if item.Gap != nil {
			words = append(words, fmt.Sprintf("gap(%s)", item.Gap.Reason))
		} else {
			words = append(words, fmt.Sprintf("%d=%s", item.Message.Position.Offset, item.Message.Data))
		}
	}
	return strings.Join(words, " ")
}

// wantHad waits until every subscriber has had exactly this of every topic.
func (c *crowd) wantHad(want map[string]string) {
	c.Helper()
	var wrong string
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(10 * time.Millisecond) {
		if wrong = c.wrong(want); wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			require.Fail(c, "not everyone has had all, and nothing else", wrong)
		}
	}
}

func (c *crowd) wrong(want map[string]string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, had := range c.had {
		for _, topic := range c.topics {
			if got := saying(had[topic]); got != want[topic] {
				return fmt.Sprintf("subscriber %d, %s:\ngot  %s\nwant %s", i, topic, got, want[topic])
			}
		}
	}
	return ""
}

// A speaker publishes the numbers 1, 2, 3, … to every topic, and knows what
// subscribers must have had.
type speaker struct {
	*testing.T
	topics []string
	n      int
	want   map[string]string
}

func newSpeaker(c *crowd) *speaker {
	return &speaker{T: c.T, topics: c.topics, want: map[string]string{}}
}

// say publishes the next number to all topics, and returns why it could not.
func (s *speaker) say(client *pubsub.Client) error {
	s.n++
	for _, topic := range s.topics {
		published, err := client.PublishJSON(context.Background(), topic, s.n)
		if err != nil {
			return err
		}
		s.heard(topic, fmt.Sprintf("%d=%d", published.Position.Offset, s.n))
	}
	return nil
}

func (s *speaker) heard(topic, word string) {
	s.want[topic] = strings.TrimSpace(s.want[topic] + " " + word)
}

// gap says that every topic's subscribers are to be told that the daemon restarted.
func (s *speaker) gap() {
	for _, topic := range s.topics {
		s.heard(topic, "gap(restarted)")
	}
}

func (s *speaker) mustSay(s2 *served, times int) {
	s.Helper()
	client, err := pubsub.New(s2.public)
	require.NoError(s, err)
	defer client.Close()
	for range times {
		require.NoError(s, s.say(client))
	}
}

// successor starts a daemon where another was.
func (s *served) successor(args ...string) *served {
	s.Helper()
	return serveProcess(s.T, append([]string{
		"--listen-public=" + strings.TrimPrefix(s.public, "http://"), "--listen-admin=" + strings.TrimPrefix(s.admin, "http://"),
	}, args...)...)
}

// Sixty subscribers, in sessions and without, long polling, streaming and over WebSockets, live
// through a planned restart in the middle of everything, and lose nothing; then
// through a crash, and each is told of it once for each of its topics.
func TestARestartLosesNothingAndACrashIsToldOnce(t *testing.T) {
	t.Parallel()
	settings := []string{"--store", t.TempDir(), "--store-sync=stop", "--history-messages=100000", "--history-bytes=100MiB"}
	one := serveProcess(t, settings...)
	crowd := gather(t, one, 60, 10)
	speaker := newSpeaker(crowd)

	speaking := make(chan error)
	go func() {
		client, err := pubsub.New(one.public, pubsub.WithPublishRetry(0))
		for err == nil {
			err = speaker.say(client)
		}
		client.Close()
		speaking <- err
	}()
	one.waitForMetric(`pubsubd_sessions 30`)
	require.Eventually(t, func() bool { return crowd.wrong(nil) != "" }, patience, 5*time.Millisecond)
	one.signal(syscall.SIGTERM)
	require.Error(t, <-speaking, "it publishes until it is refused")
	one.wantEnd("the state was written")

	two := one.successor(settings...)
	speaker.mustSay(two, 5)
	crowd.wantHad(speaker.want)
	two.signal(syscall.SIGKILL)
	two.exit()
	require.Contains(t, two.stderr.String(), "nothing is lost")

	three := two.successor(settings...)
	speaker.gap()
	speaker.mustSay(three, 5)
	crowd.wantHad(speaker.want)
	three.signal(syscall.SIGTERM)
	three.wantEnd("a new epoch begins")
}

// wantEnd waits for the process to end well, and for words in its log.
func (s *served) wantEnd(words string) {
	s.Helper()
	require.Zero(s, s.exit().ExitCode(), s.stderr)
	require.Contains(s, s.stderr.String(), words)
}

// A state that something has damaged keeps the daemon from starting, in words. After a repair it
// starts, and subscribers learn that messages are lost.
func TestADamagedStateIsRepaired(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	settings := []string{"--store", dir, "--store-sync=stop"}
	one := serveProcess(t, settings...)
	crowd := gather(t, one, 6, 2)
	speaker := newSpeaker(crowd)
	speaker.mustSay(one, 3)
	crowd.wantHad(speaker.want)
	one.signal(syscall.SIGTERM)
	one.wantEnd("the state was written")

	inspected := run(t, nil, "store", "inspect", dir)
	require.Zero(t, inspected.code, inspected.stderr)
	require.Regexp(t, `next start +recovers all entries\n`, inspected.stdout)
	files, err := filepath.Glob(filepath.Join(dir, "*.checkpoint"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	state, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(files[0], state[:len(state)-100], 0o600))
	refused := run(t, nil, append([]string{"serve", "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0"}, settings...)...)
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, "pubsubd store repair DIR")
	repaired := run(t, nil, "store", "repair", dir, "--yes")
	require.Zero(t, repaired.code, repaired.stderr)

	two := one.successor(settings...)
	used := run(t, nil, "store", "verify", dir)
	require.Equal(t, 1, used.code)
	require.Contains(t, used.stderr, "a daemon with store.sync: stop runs, or has crashed")
	for _, topic := range speaker.topics {
		speaker.heard(topic, "gap(lost)")
	}
	speaker.mustSay(two, 3)
	crowd.wantHad(speaker.want)
	two.signal(syscall.SIGTERM)
	two.wantEnd("the state was written")
}

func TestAStateThatCannotBeWrittenKeepsItFromStarting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	r := run(t, nil, "serve", "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--store="+filepath.Join(file, "state"), "--store-sync=stop")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "not a directory")
	require.Contains(t, r.stderr, "store.dir")
}
