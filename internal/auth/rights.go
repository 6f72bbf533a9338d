package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Right is what a principal may do with a topic.
type Right string

// The rights.
const (
	Subscribe Right = "subscribe" // receive, from any position that the history holds
	Publish   Right = "publish"
	History   Right = "history"  // read the history without a subscription
	Presence  Right = "presence" // learn who is subscribed
	Delete    Right = "delete"   // delete the history
	Manage    Right = "manage"   // forbid it to others
)

// AllRights returns every right.
func AllRights() []Right { return []Right{Subscribe, Publish, History, Presence, Delete, Manage} }

// verb completes "may not …" before a topic.
func (r Right) verb() string {
	switch r {
	case Subscribe:
		return "subscribe to"
	case Publish:
		return "publish to"
	case History:
		return "read the history of"
	case Presence:
		return "see who is on"
	case Manage:
		return "manage the clients of"
	}
	return "delete the history of"
}

// Rights are what a principal may do with which topics. Entries only grant, so their order
// does not matter. The zero value grants nothing. Rights are immutable.
type Rights struct {
	entries []entry
	all     bool // every right on every topic
}

// Everything is what callers may do on a daemon without authorisation.
var Everything = Rights{all: true}

// An entry grants each of its rights on each of its topics.
type entry struct {
	topics []string // names and patterns
	allow  []Right
}

// Bounds of rights. They bound the time of a check.
const (
	maxEntries = 64
	maxNames   = 256 // of all entries together
)

// ParseRights reads rights from JSON, the claim "pubsub" of a token:
//
//	[{"topics": ["chat.42", "prices.>", "inbox.$sub"], "allow": ["subscribe", "publish"]}]
//
// The segment $sub in a topic stands for the subject. If the subject is not one valid segment of
// a topic, an entry that has $sub grants nothing. ParseRights refuses unknown rights,
// unknown members and members that appear twice.
func ParseRights(text []byte, subject string) (Rights, error) {
	var members []map[string][]string
	if err := json.Unmarshal(text, &members); err != nil { // it refuses members that appear twice
		return Rights{}, fmt.Errorf(`rights must be a list such as [{"topics":["chat.>"],"allow":["subscribe"]}]: %w`, err)
	}
	if len(members) > maxEntries {
		return Rights{}, fmt.Errorf("rights may have at most %d entries; got %d: use patterns", maxEntries, len(members))
	}
	var entries []entry
	names := 0
	for i, m := range members {
		e, err := entryOf(m)
		if err != nil {
			return Rights{}, fmt.Errorf("entry %d of the rights: %w", i+1, err)
		}
		if names += len(e.topics); names > maxNames {
			return Rights{}, fmt.Errorf("rights may name at most %d topics: use patterns", maxNames)
		}
		if e.resolve(subject) {
			entries = append(entries, e)
		}
	}
	return Rights{entries: entries}, nil
}

// String says in words what the rights grant, such as "may subscribe to public.>, and may
// publish to inbox".
func (rs Rights) String() string {
	var grants []string
	for _, e := range rs.entries {
		verbs := make([]string, len(e.allow))
		for i, r := range e.allow {
			verbs[i] = r.verb()
		}
		grants = append(grants, "may "+listed(verbs)+" "+listed(e.topics))
	}
	if len(grants) == 0 {
		return "may do nothing"
	}
	return strings.Join(grants, ", and ")
}

// listed returns "a", "a and b", or "a, b and c".
func listed(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// entryOf reads an entry from its members.
func entryOf(members map[string][]string) (e entry, err error) {
	for name, values := range members {
		switch name {
		case "topics":
			e.topics = values
		case "allow":
			for _, value := range values {
				e.allow = append(e.allow, Right(value))
			}
		default:
			return e, fmt.Errorf("member %s is not known: an entry has topics and allow", wire.Quote(name))
		}
	}
	if len(e.topics) == 0 || len(e.allow) == 0 {
		return e, errors.New("topics and allow must each have at least one element")
	}
	for _, r := range e.allow {
		if !slices.Contains(AllRights(), r) {
			return e, fmt.Errorf("%s is not a right; the rights are %v", wire.Quote(r), AllRights())
		}
	}
	for _, name := range e.topics {
		if err := wire.CheckPattern(substitute(name, "x")); err != nil {
			return e, err
		}
	}
	return e, nil
}

// resolve puts the subject into the entry's topics. It returns false if the entry grants
// nothing.
func (e *entry) resolve(subject string) bool {
	for i, name := range e.topics {
		resolved := substitute(name, subject)
		isSegment := !strings.Contains(subject, ".") && wire.CheckTopic(subject) == nil
		if resolved != name && !isSegment || wire.CheckPattern(resolved) != nil {
			return false
		}
		e.topics[i] = resolved
	}
	return true
}

// placeholder stands for the subject in a topic.
const placeholder = "$sub"

// substitute returns the name with the subject as each segment that is the placeholder.
func substitute(name, subject string) string {
	if !strings.Contains(name, placeholder) {
		return name
	}
	segments := strings.Split(name, ".")
	for i := range segments {
		if segments[i] == placeholder {
			segments[i] = subject
		}
	}
	return strings.Join(segments, ".")
}

// Names returns names and patterns. One of them matches each topic on which Grant.Allow finds r,
// but they may match other topics, too. Wildcards do not match the daemon's own topics.
func (rs Rights) Names(r Right) (names []string) {
	if rs.all {
		return []string{">", "_>"}
	}
	for _, e := range rs.entries {
		if slices.Contains(e.allow, r) {
			names = append(names, e.topics...)
		}
		if (r == Subscribe || r == History) && slices.Contains(e.allow, Presence) { // see needed
			for _, about := range e.topics {
				names = append(names, wire.PresenceTopic(about))
			}
		}
	}
	return names
}

// covers reports whether a pattern or topic matches every topic that name matches, which is
// a topic or another pattern.
func covers(by, name string) bool {
	// Fast path: most names differ before a wildcard.
	for i := 0; i < min(len(by), len(name)) && by[i] != '*' && by[i] != '>'; i++ {
		if by[i] != name[i] {
			return false
		}
	}
	if wire.ReservedTopic(name) && !wire.ReservedTopic(by) {
		return false // a wildcard does not match the daemon's own topics
	}
	for {
		b, restOfBy, moreBy := strings.Cut(by, ".")
		n, restOfName, moreName := strings.Cut(name, ".")
		switch {
		case b == ">":
			return true
		case b != n && (b != "*" || n == ">"):
			return false
		case !moreBy || !moreName:
			return moreBy == moreName
		}
		by, name = restOfBy, restOfName
	}
}
