package loadtest

import "time"

// A scenario says what is published when, and what a delivery means. It does no
// I/O, and time is an argument. A run calls it from its one goroutine.
//
// Clients are numbered from 0; client c subscribes to topic c % topics. Messages
// of a topic are numbered from 0 in the order of their instants, which is what
// sequence means here; it is in the payload, so a receiver knows what it has.
type scenario interface {
	shape() shape
	// start says that the first instant is at the given time.
	start(at time.Duration)
	// window returns when the recorded part begins.
	window() time.Duration
	// due hands out everything whose instant has come, and returns when to be asked
	// again; never: when everything was handed out, and nothing is waited for.
	due(now time.Duration, publish func(publication)) time.Duration
	// read finds the sequence in a payload that came on the topic.
	read(topic int, payload []byte) (sequence int, ok bool)
	// delivered takes the first delivery of a message to a client.
	delivered(d delivery) outcome
	// progress returns how much of the scenario is done, in its own unit.
	progress(now time.Duration) (done, total int, unit string)
	// report adds what only this scenario knows.
	report(r *Result)
}

// A shape is what does not change while a scenario runs.
type shape struct {
	name        string
	topics      int
	perTopic    int // clients
	messages    int // at most, of one topic
	contentType string
	period      time.Duration // of the schedule; 0 if it follows deliveries
	bursts      bool          // everything happens in bursts: watch the generator in them
	publishes   int           // at the same time, at most, if the server answers each before that publisher's next
}

func (s shape) clients() int { return s.topics * s.perTopic }

// A publication is one message that is due.
type publication struct {
	client   int // who publishes, if a client does
	topic    int
	sequence int
	due      time.Duration
	payload  []byte // kept until sent
}

// A delivery is one message that a client has.
type delivery struct {
	client   int
	topic    int
	sequence int
	now      time.Duration
}

// An outcome is what a scenario makes of a delivery.
type outcome struct {
	latency  time.Duration // since the scheduled instant
	recorded bool          // latency counts
	late     bool          // the scenario has given it up: it counts as lost
}
