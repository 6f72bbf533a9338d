package daemon

import (
	"crypto/tls"
	"crypto/x509"

	"go.uber.org/zap/zapcore"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// levelOf returns log.level, or info if cfg is not valid.
func levelOf(cfg config.Config) zapcore.Level {
	level, err := zapcore.ParseLevel(cfg.Log.Level)
	if err != nil {
		return zapcore.InfoLevel
	}
	return level
}

// loadTLS reads the files of cfg, as far as it names some.
func loadTLS(cfg config.TLS) (certificate *tls.Certificate, clients []*x509.Certificate, err error) {
	if certificate, err = cfg.Load(); err == nil {
		clients, err = cfg.LoadClientCA()
	}
	return certificate, clients, err
}

// limitConfig returns the limits, which cfg has in several places.
func limitConfig(cfg config.Config, files listen.OpenFiles) limit.Config {
	c := cfg.Limit
	c.Sessions = cfg.Session.MaxSessions
	c.Connections = files.Connections(c.Connections)
	return c
}

// brokerConfig returns the broker's part of cfg, with the topics of the hook and a budget
// that fits GOMEMLIMIT.
func brokerConfig(cfg config.Config) broker.Config {
	c := cfg.Broker
	c.MemoryBudget = int(memory.Budget(c.MemoryBudget, memory.Limit()))
	switch {
	case cfg.PublishHook.URL == "":
		c.HookTopics = nil
	case len(c.HookTopics) == 0:
		c.HookTopics = []string{">"}
	}
	if cfg.EventsHook.URL != "" {
		c.WatchedTopics = cfg.EventsHook.Topics
	}
	return c
}

// limitsOf returns the limits that clients are shown.
func limitsOf(cfg config.Config, s session.Config, l limit.Config) wire.Limits {
	t := cfg.Transport
	return wire.Limits{
		PollTimeoutMS:       t.PollTimeout.Milliseconds(),
		HeartbeatMS:         t.Heartbeat.Milliseconds(),
		InactivityTimeoutMS: s.InactivityTimeout.Milliseconds(),
		MaxOutputDelayMS:    t.MaxOutputDelay.Milliseconds(),
		AnswerFrames:        t.AnswerFrames,
		AnswerBytes:         t.AnswerBytes,
		Queue:               s.Queue,
		Unacked:             s.Unacked,
		Subscriptions:       s.Subscriptions,
		MessageBytes:        cfg.MessageBytes,
		IdempotencyMS:       cfg.Broker.IdempotencyWindow.Milliseconds(),
		WaitMS:              l.Wait.Milliseconds(),
		PendingMessages:     l.PendingMessages,
	}
}
