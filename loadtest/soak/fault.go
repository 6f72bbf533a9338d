package soak

import (
	"fmt"
	"sync"
)

// A Kind says what was promised and not kept.
type Kind string

// The kinds of faults.
const (
	Loss          Kind = "loss"           // a message neither came nor was announced as lost
	Double        Kind = "double"         // a message came twice, or was stored twice
	Disorder      Kind = "disorder"       // a message came after a newer one
	Payload       Kind = "payload"        // not what was published at that position
	GapRange      Kind = "gap range"      // a gap does not begin where the subscriber is, or leads back
	NeedlessGap   Kind = "needless gap"   // a gap over nothing, or over what the history still held
	GapReason     Kind = "gap reason"     // a gap whose reason cannot be
	NotRestarted  Kind = "not restarted"  // another epoch without the gap that says so
	RestartedMore Kind = "restarted more" // a gap "restarted" without another epoch, or once more
	Epoch         Kind = "epoch"          // the daemon kept its epoch, or did not, against its word
	Repeat        Kind = "repeat"         // a frame that was sent again is not the same
	Protocol      Kind = "protocol"       // an answer that the protocol does not allow
	Undeleted     Kind = "undeleted"      // a deleted message came to a subscriber that began later
	Echo          Kind = "echo"           // a subscriber's own message came back to it
	Limit         Kind = "limit"          // a limit was not held, or who heeds it was not served
	Hook          Kind = "hook"           // the application was not asked as it should be, or not obeyed
	Daemon        Kind = "daemon"         // it ended by itself, or badly
)

// A Fault is one promise that was not kept.
type Fault struct {
	Kind   Kind   `json:"kind"`
	Who    string `json:"who,omitempty"`   // the subscriber, if one
	Topic  string `json:"topic,omitempty"` // if one
	AtMS   int64  `json:"at_ms"`           // since the beginning, as well as it is known
	Detail string `json:"detail"`
}

// String is a line of a report.
func (f Fault) String() string {
	return fmt.Sprintf("%-14s at %.3f s  %s %s: %s", f.Kind, float64(f.AtMS)/1000, f.Who, f.Topic, f.Detail)
}

// mostFaults is how many are kept; the rest is only counted.
const mostFaults = 20

// faults counts faults and keeps the first. It is safe for concurrent use.
type faults struct {
	mu    sync.Mutex
	kept  []Fault
	count map[Kind]int
}

func newFaults() *faults { return &faults{count: map[Kind]int{}} }

func (f *faults) add(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[fault.Kind]++
	if len(f.kept) < mostFaults {
		f.kept = append(f.kept, fault)
	}
}

func (f *faults) total() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, count := range f.count {
		n += count
	}
	return n
}
