package transport

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A lot is a Parking that counts what is written.
type lot struct {
	deflates bool
	frames   int
}

func (l *lot) Whole(_ []byte, frames []*frame.Frame) (int, error) { return l.Send(nil, frames) }

func (l *lot) Send(_ []byte, frames []*frame.Frame) (n int, err error) {
	l.frames += len(frames)
	for _, f := range frames {
		n += len(f.Bytes(frame.NDJSON))
		if l.deflates {
			f.Deflated(frame.NDJSON, 1<<10)
		}
	}
	return n, nil
}

func (l *lot) Blocked() bool      { return false }
func (l *lot) Deflates(bool) bool { return l.deflates }
func (l *lot) Wake()              {}

// A loop does not encode more than quickBytes of messages: a goroutine does. Bytes that were made
// for others, and small messages, are written at once.
func TestALoopDoesNotEncodeMuch(t *testing.T) {
	m := metrics.New("test")
	b := broker.New(broker.Config{}, m, time.Now())
	defer b.Close()
	registry := session.NewRegistry(session.Config{}, b, m)
	server := New(Config{}, wire.Limits{}, nil, m, nil)
	data := []byte(`"` + strings.Repeat("x", quickBytes/4) + `"`)
	publish := func(topic string) {
		_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: data}, 0, time.Now())
		require.NoError(t, err)
	}
	for range 3 {
		publish("few")
	}
	for range 4 {
		publish("many")
	}
	for _, step := range []struct {
		topic    string
		deflates bool
		first    session.State
	}{
		{"few", false, session.Over},
		{"many", false, session.Waiting},
		{"many", false, session.Over}, // it was encoded
		{"many", true, session.Waiting},
		{"many", true, session.Over},
	} {
		s, _, err := registry.OpenEphemeral(session.Opening{
			Grant: auth.Anyone, Peer: &session.Peer{}, Topics: []wire.Start{{Topic: step.topic, From: wire.FromOldest}},
		}, time.Now())
		require.NoError(t, err)
		to := &lot{deflates: step.deflates}
		var a Answer
		a.Init(server, to, true)
		require.NoError(t, a.Begin(s, Request{Mode: Batch}))
		state, err := a.Go(false)
		require.NoError(t, err)
		require.Equal(t, step.first, state, step)
		if state == session.Waiting {
			require.Zero(t, to.frames)
			state, err = a.Wait(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, session.Over, state)
		require.Equal(t, map[string]int{"few": 3, "many": 4}[step.topic], to.frames)
		registry.End(s)
	}
}
