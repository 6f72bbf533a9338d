package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Gauges is the state of the daemon at one moment.
type Gauges struct {
	Topics        int
	Subscriptions int
	Sessions      int
	Behind        int // subscriptions that catch up from history
	Unfollowed    int // topics that sessions leave out
	Queued        int // frames in sessions' queues
	Unacked       int // frames sent and not yet acknowledged

	PresenceMembers int

	Memory         map[string]int64 // bytes that count against the budget, by kind
	MemoryBudget   int64            // the most that all of these may take
	MemoryPressure int              // 0, 1 or 2: none, high, critical

	Draining           bool
	CertificateExpires time.Time // zero: there is no certificate
	IdempotencyKeys    int       // with a remembered result

	TokenKeys, CachedTokens int
	TokenCacheBytes         int           // including certificates
	JWKSAge                 time.Duration // since the last successful fetch; 0: none

	MaxTopics, MaxSubscriptions int // the settings in force

	Store StoreState

	Limits    []Limit // the other limits
	Addresses int     // tracked by limits
}

// A Limit is a limit and its use.
type Limit struct {
	Name    string
	Most    int  // 0: no limit
	OfOne   bool // applies to each client or session, so it has no total use
	InUse   int
	Waiting int // calls that wait for a slot
}

// Gather registers gauges that call gather once for each scrape.
func (m *Metrics) Gather(gather func() Gauges) {
	m.Registry.MustRegister(gauges(gather))
}

// GatherProcess registers the collectors of the Go runtime and of the process.
func (m *Metrics) GatherProcess() {
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// gauges turns one Gauges value into the samples of a scrape, so that they are of the same
// moment.
type gauges func() Gauges

// Describe implements prometheus.Collector.
func (g gauges) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, ch) }

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	now := g()
	send := func(name, help string, v float64) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(prefix+name, help, nil, nil), prometheus.GaugeValue, v)
	}
	labelled := func(name, help, label string) func(value string, v float64) {
		d := prometheus.NewDesc(prefix+name, help, []string{label}, nil)
		return func(value string, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, value) }
	}
	send("topics", "Topics that exist.", float64(now.Topics))
	send("subscriptions", "Subscriptions of sessions and of stateless polls in progress.", float64(now.Subscriptions))
	send("sessions", "Open sessions.", float64(now.Sessions))
	send("subscriptions_behind", "Subscriptions that are behind and catch up from history.", float64(now.Behind))
	send("session_queued_frames", "Frames in sessions' queues.", float64(now.Queued))
	send("unfollowed_topics", "Topics that sessions leave out although a pattern matches them, because they do not fit into limits.pattern_bytes. A topic counts once for each session.", float64(now.Unfollowed))
	send("session_unacked_frames", "Frames sent and not yet acknowledged.", float64(now.Unacked))
	send("presence_members", "Members of topics with presence; a member of two topics counts twice.", float64(now.PresenceMembers))
	send("idempotency_keys", "Idempotency keys whose results the daemon remembers.", float64(now.IdempotencyKeys))
	send("addresses", "Client addresses that limits track.", float64(now.Addresses))
	send("token_keys", "Keys that verify tokens.", float64(now.TokenKeys))
	send("cached_tokens", "Verified tokens in the cache.", float64(now.CachedTokens))
	send("token_cache_bytes", "Memory that the cache of verified tokens and certificates takes: at most 34 MiB, in addition to pubsubd_memory_budget_bytes.", float64(now.TokenCacheBytes))
	send("jwks_age_seconds", "Time since the last successful fetch of auth.jwks; 0 without auth.jwks, or before the first fetch. Above 3600 the daemon refuses the keys.", now.JWKSAge.Seconds())
	send("draining", "1 while the daemon drains, otherwise 0.", oneIf(now.Draining))
	now.Store.send(send)

	expires := 0.0
	if at := now.CertificateExpires; !at.IsZero() {
		expires = float64(at.Unix())
	}
	send("certificate_expires_timestamp_seconds", "Time at which the certificate for clients expires, in seconds since 1970; 0 without TLS.", expires)

	memory := labelled("memory_bytes", "Memory that counts against the budget, by kind: history, frames (encodings), queues (with sessions and their connections), topics (with subscriptions, patterns and members of presence), unfinished (bodies and commands that have not arrived in full, or wait to be carried out), unread (answers that clients have not read).", "kind")
	for kind, bytes := range now.Memory {
		memory(kind, float64(bytes))
	}
	send("memory_budget_bytes", "Budget for the sum of pubsubd_memory_bytes.", float64(now.MemoryBudget))
	send("memory_pressure", "Memory pressure: 0 none; 1 the daemon refuses new sessions, lists and histories; 2 it also cuts off clients that do not read, and trims their sessions.", float64(now.MemoryPressure))

	most := labelled("limit", "Value in force of each limit; 0 means no limit.", "limit")
	inUse := labelled("in_use", "Current use of each limit.", "limit")
	waiting := labelled("waiting", "Calls and session openings that wait for a slot, by limit.", "limit")
	most("topics", float64(now.MaxTopics))
	most("all_subscriptions", float64(now.MaxSubscriptions))
	for _, l := range now.Limits {
		most(l.Name, float64(l.Most))
		if !l.OfOne {
			inUse(l.Name, float64(l.InUse))
			waiting(l.Name, float64(l.Waiting))
		}
	}
}
