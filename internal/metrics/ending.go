package metrics

// An Ending is why the daemon ended a connection, because of what its client did.
type Ending string

// The endings.
const (
	Refused    Ending = "refused"     // it was one too many
	SlowHead   Ending = "slow_head"   // the head of a request, or a handshake, took too long
	SlowBody   Ending = "slow_body"   // the body of a request did, or a command
	SlowReader Ending = "slow_reader" // the client did not take what was written
	Silent     Ending = "silent"      // nothing came at all, or no sign of life
)

var endings = []Ending{Refused, SlowHead, SlowBody, SlowReader, Silent}

// Ended counts a connection that the daemon ended.
func (m *Metrics) Ended(why Ending) { m.ConnectionsEnded.WithLabelValues(string(why)).Inc() }
