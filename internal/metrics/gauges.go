package metrics

import "github.com/prometheus/client_golang/prometheus"

// Gauges is the daemon's state at one moment.
type Gauges struct {
	Topics        int
	Subscriptions int
	Sessions      int
	Behind        int            // subscriptions that catch up from history
	Queued        int            // frames in sessions' queues
	Unacked       int            // frames sent and not yet acked
	Parked        map[string]int // polls waiting, by transport
	HistoryBytes  int64          // messages held by histories
	FrameBytes    int64          // encodings of those messages
	QueueBytes    int64          // sessions' queues, messages that only they hold, and lists of unacked frames
	TopicBytes    int64          // topics and subscriptions by themselves

	UnfinishedBytes int64 // bodies and commands whose end has not come
	UnreadBytes     int64 // answers that clients have not read
	MemoryBudget    int64 // that all of these may take

	MemoryPressure int // 0, 1 or 2: none, high, critical

	Draining bool // clients are told to leave

	IdempotencyKeys int // whose results are remembered

	// What Topics and Subscriptions may come to: the settings in force.
	MaxTopics, MaxSubscriptions int

	Limits    []Limit // the others
	Addresses int     // that limits keep an account of
}

// A Limit is how many there may be of something, and how many there are.
type Limit struct {
	Name    string
	Most    int  // 0: no bound
	OfOne   bool // client, or session: of all together nothing is to be said
	InUse   int
	Waiting int // for one in use to end
}

// Gather registers gauges that call gather once per scrape.
func (m *Metrics) Gather(gather func() Gauges) {
	m.Registry.MustRegister(&gauges{gather: gather})
}

// gauges turns one Gauges value per scrape into samples, so that what is scraped
// together was looked at together.
type gauges struct{ gather func() Gauges }

var (
	descTopics        = describe("topics", "Topics held.")
	descSubscriptions = describe("subscriptions", "Subscriptions of sessions and of stateless polls in progress.")
	descSessions      = describe("sessions", "Open sessions.")
	descBehind        = describe("subscriptions_behind", "Subscriptions that catch up from history.")
	descQueued        = describe("session_queued_frames", "Frames in sessions' queues.")
	descUnacked       = describe("session_unacked_frames", "Frames sent and not yet acked.")
	descParked        = describe("polls_parked", "Polls waiting for a frame, by transport.", "transport")
	descKeys          = describe("idempotency_keys", "Idempotency keys whose results are remembered.")
	descMemory        = describe("memory_bytes", "Memory that counts against the budget, by kind: history, frames (encodings), queues, topics (subscriptions and patterns, too), unfinished (bodies and commands whose end has not come), unread (answers that clients have not read).", "kind")
	descBudget        = describe("memory_budget_bytes", "The budget of all kinds of pubsubd_memory_bytes together.")
	descPressure      = describe("memory_pressure", "How short of memory the daemon is: 0 not; 1 new sessions, lists and histories are refused; 2 clients that do not read are cut off, and their sessions trimmed, too.")
	descLimit         = describe("limit", "How many there may be, by the setting in force; 0 is no bound.", "limit")
	descInUse         = describe("in_use", "How many there are of what is limited, by limit.", "limit")
	descWaiting       = describe("waiting", "Calls and session openings that wait for a place, by limit.", "limit")
	descAddresses     = describe("addresses", "Addresses of clients that limits keep an account of.")
	descDraining      = describe("draining", "1 while the daemon lets its clients leave, else 0.")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, ch) }

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	now := g.gather()
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	send(descTopics, float64(now.Topics))
	send(descSubscriptions, float64(now.Subscriptions))
	send(descSessions, float64(now.Sessions))
	send(descBehind, float64(now.Behind))
	send(descQueued, float64(now.Queued))
	send(descUnacked, float64(now.Unacked))
	for transport, n := range now.Parked {
		send(descParked, float64(n), transport)
	}
	send(descKeys, float64(now.IdempotencyKeys))
	send(descMemory, float64(now.HistoryBytes), "history")
	send(descMemory, float64(now.FrameBytes), "frames")
	send(descMemory, float64(now.QueueBytes), "queues")
	send(descMemory, float64(now.TopicBytes), "topics")
	send(descMemory, float64(now.UnfinishedBytes), "unfinished")
	send(descMemory, float64(now.UnreadBytes), "unread")
	send(descBudget, float64(now.MemoryBudget))
	send(descPressure, float64(now.MemoryPressure))
	send(descLimit, float64(now.MaxTopics), "topics")
	send(descLimit, float64(now.MaxSubscriptions), "all_subscriptions")
	for _, l := range now.Limits {
		send(descLimit, float64(l.Most), l.Name)
		if l.OfOne {
			continue
		}
		send(descInUse, float64(l.InUse), l.Name)
		send(descWaiting, float64(l.Waiting), l.Name)
	}
	send(descAddresses, float64(now.Addresses))
	send(descDraining, one(now.Draining))
}

// one is 1 if it is so.
func one(so bool) float64 {
	if so {
		return 1
	}
	return 0
}
