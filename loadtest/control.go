package loadtest

import (
	"time"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// The control protocol is what the process that publishes, the coordinator, says
// to the agents that have the clients: JSON over HTTP, a request at a time.
//
//	GET    /v1/agent               who the agent is; nothing changes
//	POST   /v1/runs                a portion of a test; its clients connect at once
//	GET    /v1/runs/{run}          how far it is
//	POST   /v1/runs/{run}/clock    what the agent's clock shows
//	POST   /v1/runs/{run}/start    the first instant, by the agent's clock
//	POST   /v1/runs/{run}/finish   what was published; the answer has what was found
//	DELETE /v1/runs/{run}          ends it, whatever it is at
//
// An error is another status than 2xx with {"error": …}. Both sides must be of one
// build: a test is made by one instrument.
const controlVersion = 1

// agentHello is who an agent is.
type agentHello struct {
	Control   int    `json:"control"` // controlVersion
	Version   string `json:"version"` // of the build
	PID       int    `json:"pid"`
	OpenFiles uint64 `json:"open_files"` // the limit, raised as far as it goes
	Busy      bool   `json:"busy"`       // with a run
}

// portionOrder is what an agent is to do: the whole test, of which it has PerTopic
// clients on each topic.
type portionOrder struct {
	Run        string           `json:"run"`
	Target     string           `json:"target"`
	Topics     []string         `json:"topics"`
	PerTopic   int              `json:"clients_per_topic"`
	Transport  client.Transport `json:"transport,omitempty"`
	Format     client.Format    `json:"format"`
	Mode       client.Mode      `json:"mode"`
	Stateless  bool             `json:"stateless"`
	Connecting int              `json:"connecting"` // clients at the same time
	Broadcast  *broadcastOrder  `json:"broadcast,omitempty"`
	Steady     *steadyOrder     `json:"steady,omitempty"`
}

type broadcastOrder struct {
	Clients      int           `json:"clients"`
	Period       time.Duration `json:"period_ns"`
	Bursts       int           `json:"bursts"`
	Warmup       int           `json:"warmup"`
	MessageBytes int           `json:"message_bytes"`
}

type steadyOrder struct {
	PerTopic int           `json:"clients_per_topic"` // over all agents
	Period   time.Duration `json:"period_ns"`
	Warmup   time.Duration `json:"warmup_ns"`
	Duration time.Duration `json:"duration_ns"`
}

// portionStatus is how far an agent's portion is.
type portionStatus struct {
	Ready     int    `json:"ready"` // clients
	Delivered int64  `json:"delivered"`
	Failures  int64  `json:"failures"`
	Error     string `json:"error,omitempty"` // it has ended before its time
}

// clockReading is an agent's clock, and its machine's, at the same moment.
type clockReading struct {
	Now       time.Duration `json:"now_ns"`       // since the portion began, as in its start
	Monotonic time.Duration `json:"monotonic_ns"` // of the kernel; 0: not known
	Apart     time.Duration `json:"apart_ns"`     // between the two
	Boot      string        `json:"boot,omitempty"`
}

type portionStart struct {
	At time.Duration `json:"at_ns"`
}

// portionPublished is what became of the publishes, by topic, in the order of
// portionOrder.Topics.
type portionPublished struct {
	Epochs  []string   `json:"epochs"`
	Offsets [][]uint64 `json:"offsets"` // by sequence; 0: not answered
	Refused [][]int    `json:"refused"` // sequences
}

// portionResult is what an agent found.
type portionResult struct {
	Latency    *stats.Latency `json:"latency"`
	Series     *stats.Series  `json:"series"`
	Deliveries Deliveries     `json:"deliveries"`
	Bursts     []burstPart    `json:"bursts,omitempty"` // warm-up first
	Generator  Generator      `json:"generator"`
	Errors     []Failure      `json:"errors"`
}

// burstPart is what an agent's clients have of a burst.
type burstPart struct {
	Delivered int           `json:"delivered"`
	Last      time.Duration `json:"last_ns"` // since the burst's instant
}

type controlError struct {
	Error string `json:"error"`
}
