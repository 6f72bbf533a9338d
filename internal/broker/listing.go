package broker

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Listing lists topics by name for one request, in parts. It bounds what the request
// costs. It is for one goroutine.
type Listing struct {
	patterns []string
	visible  func(topic string) bool
	spans    []span // where patterns match, in order; they do not overlap
	left     int    // how many names it may still examine
}

// mostExamined is how many names a listing examines, in about 5 ms. With many patterns, it
// examines fewer: each name is compared with all of them.
const (
	mostExamined = 10_000
	manyPatterns = 16
)

// NewListing returns a listing of the topics that one of the patterns matches, and for which
// visible returns true. A pattern may be a topic.
func NewListing(patterns []string, visible func(topic string) bool) *Listing {
	l := &Listing{patterns: patterns, visible: visible, left: mostExamined / (1 + len(patterns)/manyPatterns)}
	var spans []span
	for _, p := range patterns { // its spans end where its first wildcard begins
		prefix := p
		if wildcard := strings.IndexAny(p, anySegment+anyRest); wildcard >= 0 {
			prefix = p[:wildcard]
		}
		switch last := len(prefix) - 1; {
		case prefix == p:
			spans = append(spans, span{p, p + afterName})
		case prefix == "": // it does not match the daemon's own topics, which begin with '_'
			spans = append(spans, span{"", "_"}, span{"`", beyondNames}) // '`' follows '_'
		default:
			spans = append(spans, span{prefix, prefix[:last] + string(rune(prefix[last]+1))})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for _, s := range spans {
		if last := len(l.spans) - 1; last >= 0 && s.from <= l.spans[last].to {
			l.spans[last].to = max(l.spans[last].to, s.to)
		} else {
			l.spans = append(l.spans, s)
		}
	}
	return l
}

// A span is the names from one up to another in byte order, without the latter.
type span struct{ from, to string }

// beyondNames comes after all names. afterName follows a name: no name is between the two.
const (
	beyondNames = "\xff"
	afterName   = "\x00"
)

// Topics lists at most limit topics whose names follow the given one in byte order. If there
// may be more, Next is where to continue: the name of the last topic of the list, or of
// another one when the listing has examined its most. The caller may not be permitted to see
// that one.
func (b *Broker) Topics(l *Listing, after string, limit int) wire.TopicList {
	found, next := b.examine(l, after, limit+1)
	list := wire.TopicList{Topics: []wire.TopicState{}, Next: next}
	if len(found) > limit {
		found = found[:limit]
		list.Next = found[limit-1].name
	}
	for _, t := range found {
		list.Topics = append(list.Topics, t.state())
	}
	return list
}

// examine returns the first n visible topics after the given name, in order. If it may
// examine no more names, next is the last one. It reads the names in batches, so that others
// can create topics meanwhile.
func (b *Broker) examine(l *Listing, after string, n int) (found []*topic, next string) {
	for l.left > 0 {
		most := min(n, l.left)
		names := b.names.after(after, l.spans, most)
		l.left -= len(names)
		for _, name := range names {
			if t := b.find(name); t != nil && slices.ContainsFunc(l.patterns, func(p string) bool { return wire.Matches(p, name) }) && l.visible(name) {
				found = append(found, t)
			}
			if len(found) == n {
				return found, ""
			}
		}
		if len(names) < most {
			return found, ""
		}
		after = names[most-1]
	}
	return found, after
}
