package session

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func (k *kit) openPaced(every time.Duration, topics ...string) *Session {
	k.Helper()
	starts := k.starts(topics...)
	for i := range starts {
		starts[i].Every = every
	}
	s, _, err := k.registry.Open(context.Background(), Opening{Topics: starts, Ack: true}, time.Now())
	require.NoError(k, err)
	return s
}

func TestAPacedSubscriptionGetsTheNewestOfEachKey(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.openPaced(200*time.Millisecond, "a")
		begun := time.Now()
		waiting := k.park(s, 0)
		k.publishKeys("x")
		waiting.wantFrames("a1")
		require.Equal(k, time.Duration(0), time.Since(begun), "the first comes at once")

		waiting = k.park(s, 1)
		k.publishKeys("x", "y", "x")
		waiting.wantFrames("gap(conflated a1-2) a3 a4")
		require.Equal(k, 200*time.Millisecond, time.Since(begun))

		time.Sleep(time.Second)
		waiting = k.park(s, 4)
		k.publishKeys("x")
		waiting.wantFrames("a5")
		require.Equal(k, 1200*time.Millisecond, time.Since(begun), "it had rested long enough")
		k.publishKeys("z")
		k.registry.End(s)
		time.Sleep(time.Minute) // its timer must not be left
	})
}

func TestAPacedSubscriptionIsReadInParts(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.openPaced(time.Second, "a@oldest")
		k.publishKeys("x", "y", "z")
		one := frame.Limit{Frames: 1, Bytes: 1 << 20}
		begun := time.Now()
		got, err := k.tryPoll(s, 0, one)
		require.NoError(k, err)
		require.Equal(k, "a1", got)
		k.publishKeys("x")
		require.Equal(k, "a2 a3", k.poll(s, 1), "what came since is too early")
		require.Equal(k, "a4", k.poll(s, 3))
		require.Equal(k, time.Second, time.Since(begun))
	})
}

func TestPacesAreReadStrictly(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"5/s": 200 * time.Millisecond, "30/m": 2 * time.Second, "1/10s": 10 * time.Second, "1/200ms": 200 * time.Millisecond, "1000/s": time.Millisecond, "1/h": time.Hour,
	} {
		every, err := wire.ParseRate(text)
		require.NoError(t, err, text)
		require.Equal(t, want, every, text)
	}
	for _, text := range []string{"", "5", "/s", "5/", "0/s", "-1/s", "05/s", "+5/s", "5.5/s", "5/x", "1001/s", "1/2h", "1/-1s", "1/0s", "5/s/s"} {
		_, err := wire.ParseRate(text)
		require.ErrorContains(t, err, "such as 5/s", text)
	}
}
