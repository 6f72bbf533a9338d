//go:build !race

package app

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/request"
)

// A publish on the lane allocates its topic, its payload, its message and its frame.
func TestAPublishAllocatesWhatItKeeps(t *testing.T) {
	a := newApp(t)
	topic, payload, contentType := []byte("a"), []byte("1"), "application/json"
	publish := func() {
		p, err := a.BeginPublish(t.Context(), Caller{}, string(topic))
		if err != nil {
			t.Fatal(err)
		}
		m, err := request.MessageOf(request.Head{Topic: string(topic), ContentType: request.HeaderOf([]string{contentType})})
		if err == nil {
			err = m.SetPayload(bytes.Clone(payload), 1000)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, over, err := p.Send(m); err != nil || !over {
			t.Fatal(err)
		}
	}
	require.LessOrEqual(t, testing.AllocsPerRun(1000, publish), 4.0)
}

// Each command on a two-way connection checks the grant of the connection.
func TestACheckOfAGrantAllocatesNothing(t *testing.T) {
	guard(t, func(g *guarded) {
		g.revoke("another")
		c := g.token("t", time.Hour, "a", auth.Publish)
		require.NoError(t, g.verify(g.Context(), &c))
		require.NotNil(t, c.grant)
		check := func() {
			if err := g.checkGrant(c.grant); err != nil {
				t.Fatal(err)
			}
		}
		require.Zero(t, testing.AllocsPerRun(1000, check))
	})
}
