package loadtest

import (
	"runtime"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// A Result is everything that a test found. Its JSON is for other programs:
// members are added, never changed; units are in their names.
type Result struct {
	Scenario    string      `json:"scenario"` // broadcast, collab or steady
	Started     time.Time   `json:"started"`
	Parameters  Parameters  `json:"parameters"`
	Environment Environment `json:"environment"`

	// Latency is from the scheduled instant to the receiver, of the recorded part.
	Latency       stats.Summary `json:"latency"`
	LatencySeries []stats.Point `json:"latency_series"` // over the recorded part
	Bursts        *Bursts       `json:"bursts,omitempty"`
	Rounds        *Rounds       `json:"rounds,omitempty"`
	Deliveries    Deliveries    `json:"deliveries"`
	Publishes     Publishes     `json:"publishes"`
	Server        *Server       `json:"server,omitempty"` // absent if nothing could be read
	Generator     Generator     `json:"generator"`
	Agents        []AgentResult `json:"agents,omitempty"` // the processes that had the clients, if not this one
	Errors        []Failure     `json:"errors"`           // any fails the run
	Verdict       Verdict       `json:"verdict"`          // what all of it means
}

// Parameters are the scenario's, those that it has.
type Parameters struct {
	Target         string  `json:"target"`
	StartedServer  bool    `json:"started_server"` // the target was started for the test
	Dialect        string  `json:"dialect"`
	Mode           string  `json:"mode"`                        // of pubsubd's polls, or its transport; of others the dialect, which has no other
	Format         string  `json:"format,omitempty"`            // of pubsubd's frames, if not JSON
	OnSocket       bool    `json:"publish_on_socket,omitempty"` // clients published on their own connections
	Stateless      bool    `json:"stateless"`
	Subscriptions  int     `json:"subscriptions"` // of each client: its own topic, and quiet ones
	Topics         int     `json:"topics"`
	PerTopic       int     `json:"clients_per_topic"`
	Clients        int     `json:"clients"`
	Publishers     int     `json:"publishers"`
	MaxPublishers  int     `json:"max_publishers"`
	MessageBytes   int     `json:"message_bytes,omitempty"`
	PeriodMS       float64 `json:"period_ms,omitempty"`
	DelayMS        float64 `json:"delay_ms,omitempty"`
	Bursts         int     `json:"bursts,omitempty"`
	WarmupBursts   int     `json:"warmup_bursts,omitempty"`
	Rounds         int     `json:"rounds,omitempty"`
	RoundTimeoutMS float64 `json:"round_timeout_ms,omitempty"`
	WarmupMS       float64 `json:"warmup_ms,omitempty"`
	DurationMS     float64 `json:"duration_ms,omitempty"`
	DrainMS        float64 `json:"drain_ms"`
	MaxP99MS       float64 `json:"max_p99_ms,omitempty"`
	MaxLoss        int64   `json:"max_loss"`
}

// Environment is where the generator ran.
type Environment struct {
	Cores      int    `json:"cores"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	GoVersion  string `json:"go_version"`
	OS         string `json:"os"`
	Arch       string `json:"arch"`
}

// Here returns the environment of this process.
func Here() Environment {
	return Environment{
		Cores:      runtime.NumCPU(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		GoVersion:  runtime.Version(),
		OS:         runtime.GOOS,
		Arch:       runtime.GOARCH,
	}
}

// Bursts are a broadcast's, warm-up excluded.
type Bursts struct {
	Total       int           `json:"total"`
	InTime      int           `json:"in_time"`    // complete before the next was due
	Incomplete  int           `json:"incomplete"` // some client never had it
	Completion  stats.Summary `json:"completion"` // from the instant to the last delivery, of complete ones
	Completions []float64     `json:"completions_ms"`
}

// Rounds are a collaboration's, over all topics.
type Rounds struct {
	Total    int64 `json:"total"`
	Complete int64 `json:"complete"`
	TimedOut int64 `json:"timed_out"`
}

// Deliveries are the account of the whole test, warm-up included: a message lost
// then is lost, too. Expected = Delivered + Lost.
type Deliveries struct {
	Expected     int64            `json:"expected"`
	Delivered    int64            `json:"delivered"` // the first of each message to each client
	Lost         int64            `json:"lost"`
	Late         int64            `json:"late"`    // of the lost, those that came after their round was given up
	Surplus      int64            `json:"surplus"` // of messages whose publish was refused; in none of the above
	Duplicates   int64            `json:"duplicates"`
	Disordered   int64            `json:"disordered"`    // against the offsets, or under another offset than elsewhere; without offsets, see verifier
	EpochChanges int64            `json:"epoch_changes"` // that no gap announced
	Gaps         map[string]int64 `json:"gaps"`          // announced, by reason
}

// Publishes are those of the whole test; the times, of its recorded part.
type Publishes struct {
	Sent    int64         `json:"sent"`
	Refused int64         `json:"refused"` // answered other than 200
	Waited  int64         `json:"waited"`  // no publisher connection was free when they were due
	Answer  stats.Summary `json:"answer"`  // from the scheduled instant to the answer

	IdleClosed int64 `json:"idle_closed_connections"` // publishers' connections that the server closed while they were free
}

// Server is what the server used. Window is the recorded part, up to 200 ms after
// the last delivery: the polls that follow the last messages are part of their
// cost, as those that follow the others are. Figures that could not be read are
// zero, and then not in the table.
type Server struct {
	CPUSource              string            `json:"cpu_source"`         // "kernel" (its processes), "metrics", or empty: not known
	CPUNote                string            `json:"cpu_note,omitempty"` // why it is not known though there are metrics
	CPUS                   float64           `json:"cpu_s"`              // in the window
	CPUPerDeliveryUS       float64           `json:"cpu_per_delivery_us"`
	ResidentBeforeBytes    int64             `json:"resident_before_bytes"`    // before the first client
	ResidentConnectedBytes int64             `json:"resident_connected_bytes"` // with all clients, before the first message
	ResidentEndBytes       int64             `json:"resident_end_bytes"`
	ResidentPerClientBytes float64           `json:"resident_per_client_bytes"` // connected less before
	BytesIn                int64             `json:"bytes_in"`                  // in the window
	BytesOut               int64             `json:"bytes_out"`                 // in the window
	Build                  map[string]string `json:"build,omitempty"`           // what it says of itself
}

// Generator is what the generator used in the window, which ends with the last
// delivery, and how well it kept its schedule. With agents the CPU and the bytes
// are of all processes, the thread is that of the one that publishes, and each
// agent has a Generator of its own.
type Generator struct {
	WindowS        float64       `json:"window_s"`
	Deliveries     int64         `json:"deliveries"` // that came in the window
	CPUS           float64       `json:"cpu_s"`      // of the process
	Thread         Thread        `json:"thread"`
	ScheduleLag    stats.Summary `json:"schedule_lag"`
	LagThresholdMS float64       `json:"lag_threshold_ms"` // above it the generator is bound
	BytesIn        int64         `json:"bytes_in"`         // in the window
	BytesOut       int64         `json:"bytes_out"`        // in the window
}

// Thread is how the thread that runs the event loop spent the window, and its
// bursts: from a burst's instant to its last delivery. All are shares of that
// time. On a machine that the server shares, the two sides wait for each other's
// cores, and waiting slows the generator just as being busy does.
type Thread struct {
	Known          bool    `json:"known"` // else Busy is the whole process', over its cores, and nothing is known of waiting
	Busy           float64 `json:"busy_ratio"`
	Waited         float64 `json:"waited_for_core_ratio"`
	BusyInBursts   float64 `json:"busy_in_bursts_ratio"` // 0 in scenarios without bursts
	WaitedInBursts float64 `json:"waited_for_core_in_bursts_ratio"`
}

// An AgentResult is what one of several processes had of the test.
type AgentResult struct {
	Address   string        `json:"address"`
	PID       int           `json:"pid"`
	Started   bool          `json:"started"` // for the test
	Clients   int           `json:"clients"`
	Latency   stats.Summary `json:"latency"`
	Generator Generator     `json:"generator"` // it keeps no schedule, and so has no lag
	Clock     AgentClock    `json:"clock"`
}

// AgentClock is how well the agent's clock is known by that of the process that
// publishes, and so how well the agent's latencies are. The difference is corrected.
type AgentClock struct {
	Shared        bool    `json:"shared"`         // both read the kernel's clock of one machine
	UncertaintyMS float64 `json:"uncertainty_ms"` // either way; with what it drifted
	DriftMS       float64 `json:"drift_ms"`       // from the beginning to the end
}

// addAgents adds to the Generator what the agents used. It sees deliveries later
// than they do, so the window's end and what came in it are theirs.
func (r *Result) addAgents() {
	if len(r.Agents) == 0 {
		return
	}
	sum := &r.Generator
	sum.Deliveries, sum.WindowS = 0, 0
	for i := range r.Agents {
		g := &r.Agents[i].Generator
		sum.WindowS = max(sum.WindowS, g.WindowS)
		sum.Deliveries += g.Deliveries
		sum.CPUS += g.CPUS
		sum.BytesIn += g.BytesIn
		sum.BytesOut += g.BytesOut
	}
}

// A Failure is a kind of error that came, how often, and how the first read.
type Failure struct {
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
	First string `json:"first"`
}

// A Verdict is what a Result means; see judge.
type Verdict struct {
	Failed         []string `json:"failed"`          // why the run failed
	Missed         []string `json:"missed"`          // which objectives were missed
	GeneratorBound []string `json:"generator_bound"` // why the figures are the generator's
	ExitCode       int      `json:"exit_code"`
}
