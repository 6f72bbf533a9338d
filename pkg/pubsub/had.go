package pubsub

import (
	"slices"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// hadTopics are all that a stay ever had by name.
type hadTopics map[string]bool

// maxLeft bounds the topics that a stay had and has no more. Beyond it a change
// opens a new one, which has to remember none: for a subscriber that goes
// through topics without end, one in thousands of changes.
const maxLeft = 4096

func (h hadTopics) remember(starts []wire.Start) {
	for _, start := range starts {
		h[start.Topic] = true
	}
}

// permit reports whether the stay can make the edit. It cannot take back a
// topic that it once had: of the frames that arrive then, nothing tells which
// belong to the earlier subscription, and one of those would hide what comes below it. A
// pattern may have had any.
func (h hadTopics) permit(e edit) bool {
	if len(e.add) > 0 && len(h)+len(e.add)-len(e.next.marks) > maxLeft {
		return false
	}
	for _, start := range e.add {
		if h[start.Topic] || wire.IsPattern(start.Topic) || e.next.patternOf(start.Topic) != nil {
			return false
		}
	}
	return !slices.ContainsFunc(e.remove, wire.IsPattern)
}
