package session

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// heardPresence notes what it learns.
type heardPresence struct {
	mu    sync.Mutex
	heard []string
}

func (h *heardPresence) Joined(topic string, m wire.Member) { h.note("joined", topic, m) }
func (h *heardPresence) Left(topic string, m wire.Member)   { h.note("left", topic, m) }

func (h *heardPresence) Flush()          {}
func (h *heardPresence) Sweep(time.Time) {}

func (h *heardPresence) note(what, topic string, m wire.Member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, fmt.Sprintf("%s %s %s/%s %s", m.Subject, what, topic, m.Client, m.Claims))
}

// A session that has ended stays away, although a reload visits it late.
func TestPresenceLearnsWhoJoinsAndLeavesOnce(t *testing.T) {
	heard := &heardPresence{}
	rules := broker.Config{Rules: []broker.Rule{{Name: "chat", Pattern: "chat.>", Presence: true}}}
	story(t, rules, Config{Presence: heard}, func(k *kit) {
		s, _, err := k.registry.Open(context.Background(), Opening{
			Topics: k.starts("chat.a", "other"), Grant: &auth.Grant{Subject: "ann", Claims: []byte(`{}`)}, Client: "c1",
		}, time.Now())
		require.NoError(k, err)
		s.reappear()
		_, err = s.Change(k.starts("chat.b"), []string{"chat.a", "other"}, nil)
		require.NoError(k, err)
		k.registry.End(s)
		s.reappear()
		require.Equal(k, []string{
			"ann joined chat.a/c1 {}", "ann left chat.a/c1 {}", "ann joined chat.b/c1 {}", "ann left chat.b/c1 {}",
		}, heard.heard)
	})
}
