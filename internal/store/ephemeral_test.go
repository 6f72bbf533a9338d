package store

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// typing makes the topic typing.1 ephemeral, and its like.
var typing = broker.Config{HistoryAge: time.Hour, Rules: []broker.Rule{{Name: "typing", Pattern: "typing.*", Ephemeral: true}}}

// bytesOf returns the files of a folder.
func bytesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = string(b)
	}
	return files
}

// Whatever happens to an ephemeral topic, no byte on disk changes. After a restart it begins anew,
// and every other topic continues.
func TestAnEphemeralTopicWritesNoByte(t *testing.T) {
	d := newDisk(t)
	d.config = typing
	d.mustStart()
	require.EqualValues(t, 1, d.publish("kept", "1"))
	kept, before := d.Epoch("kept"), bytesOf(t, d.dir)
	for range 100 {
		m := &wire.Message{Position: wire.Position{Topic: "typing.1"}, ID: "key", Data: []byte("1")}
		_, err := publishClaimed(d.Broker, m, 0) // it does not wait: nobody writes the log
		require.NoError(t, err)
		publish(t, d.Broker, "typing.1")
	}
	state, ok := d.Topic("typing.1")
	require.True(t, ok)
	require.EqualValues(t, 101, state.Position.Offset, "the key is used once, the others are numbered without the log")
	_, err := d.Delete("typing.1", time.Now())
	require.NoError(t, err)
	d.Sweep(time.Now().Add(2 * time.Minute))
	require.False(t, d.Has("typing.1"), "it is forgotten")
	publish(t, d.Broker, "typing.1")
	for d.wal.step(time.Now()) {
	}
	require.Equal(t, before, bytesOf(t, d.dir))

	for _, end := range []func(){func() { require.NoError(t, d.wal.close(time.Now())) }, d.checkpoint, d.kill} {
		had, _ := d.Topic("typing.1")
		end()
		d.kill()
		d.mustStart()
		require.Equal(t, kept, d.Epoch("kept"))
		d.wantTopic("kept", "1")
		require.NotEqual(t, had.Position.Epoch, d.Epoch("typing.1"))
		require.False(t, d.Has("typing.1"))
		again := &wire.Message{Position: wire.Position{Topic: "typing.1"}, ID: "key", Data: []byte("1")}
		published, err := publishClaimed(d.Broker, again, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, published.Position.Offset, "its key went with it")
		require.Regexp(t, `^gap\(restarted `, readTopic(t, d.Broker, had.Position.String(), 10))
	}
}

// A topic was in the log. After a restart with a rule that makes it ephemeral, its history is gone,
// and the log continues.
func TestATopicOfTheLogBecomesEphemeral(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	d.publish("kept", "1")
	at := wire.Position{Topic: "typing.1", Epoch: d.Epoch("kept"), Offset: d.publish("typing.1", "2")}
	pattern := d.PatternPosition(">")
	d.checkpoint()
	d.publish("typing.1", "3")
	require.NoError(t, d.wal.close(time.Now()))
	d.config = typing
	d.mustStart()
	require.False(t, d.Has("typing.1"))
	require.True(t, d.ForgottenSince(pattern, nil, broker.NewSearch(10)), "patterns get a gap")
	publish(t, d.Broker, "typing.1")
	require.Regexp(t, `^gap\(restarted `, readTopic(t, d.Broker, at.String(), 10))
	d.publish("kept", "4")
	d.wantTopic("kept", "1 4")
}

// A state that is written at a planned stop has no ephemeral topic either.
func TestAStateHasNoEphemeralTopic(t *testing.T) {
	b := newBroker(typing)
	publish(t, b, "kept")
	publish(t, b, "typing.1")
	_, err := publishClaimed(b, &wire.Message{Position: wire.Position{Topic: "typing.1"}, ID: "key", Data: []byte("1")}, 0)
	require.NoError(t, err)
	next := successor(t, b, typing)
	require.Equal(t, b.Epoch("kept"), next.Epoch("kept"))
	require.NotEqual(t, b.Epoch("typing.1"), next.Epoch("typing.1"))
	require.False(t, next.Has("typing.1"))
	require.Zero(t, gaugesOf(next).IdempotencyKeys)
}
