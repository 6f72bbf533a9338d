package wire

import "fmt"

// A Gap announces loss: the messages of Topic after After, up to and including
// Position, will not come; delivery goes on after Position.
type Gap struct {
	Topic    string    `json:"topic"`
	Reason   GapReason `json:"reason"`
	After    Position  `json:"after"`
	Position Position  `json:"position"`
}

// GapReason says why messages were lost. The list is frozen; it only grows.
type GapReason string

// The reasons of a gap.
const (
	GapExpired   GapReason = "expired"   // older than the history keeps, or past their own ttl
	GapEvicted   GapReason = "evicted"   // pushed out of the history by newer ones, or forgotten with their topic
	GapSlow      GapReason = "slow"      // the subscriber fell behind further than the history reaches
	GapConflated GapReason = "conflated" // newer messages with the same key took their place
	GapRestarted GapReason = "restarted" // the position is of another epoch, or ahead of the topic
	GapDeleted   GapReason = "deleted"   // the topic's history was emptied
)

// GapReasons returns every reason, for metrics and tests.
func GapReasons() []GapReason {
	return []GapReason{GapExpired, GapEvicted, GapSlow, GapConflated, GapRestarted, GapDeleted}
}

// check returns an error for a gap that contradicts itself. The reason may be
// one that a newer daemon knows and this client does not.
func (g *Gap) check() error {
	if g.Reason == "" || g.Topic != g.After.Topic || g.Topic != g.Position.Topic || g.Topic == "" {
		return fmt.Errorf("gap of topic %q (%s) names positions %q and %q", g.Topic, g.Reason, g.After, g.Position)
	}
	return nil
}
