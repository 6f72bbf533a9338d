package wire

import (
	"strings"
)

// Bounds of a topic's name.
const (
	MaxTopicBytes    = 255
	MaxTopicSegments = 16
)

// CheckTopic returns nil if name is a valid topic: segments of ASCII letters, digits, '-' and
// '_', with dots between them; at most MaxTopicSegments segments and MaxTopicBytes in all. Case
// matters. The bounds of a presence topic apply to the topic that it is about. The error
// says what to change.
func CheckTopic(name string) error {
	name = strings.TrimPrefix(name, presencePrefix)
	switch {
	case name == "":
		return faultf(CodeInvalidTopic, "the topic is empty: name one, such as prices.acme")
	case len(name) > MaxTopicBytes:
		return faultf(CodeInvalidTopic, "the topic must have at most %d bytes; it has %d", MaxTopicBytes, len(name))
	case strings.Count(name, ".") >= MaxTopicSegments:
		return faultf(CodeInvalidTopic, "the topic must have at most %d segments: join some", MaxTopicSegments)
	}
	for segment := range strings.SplitSeq(name, ".") {
		if segment == "" {
			return faultf(CodeInvalidTopic, "topic %s has an empty segment: write something between the dots", Quote(name))
		}
		for i := range len(segment) {
			if !isSegmentByte(segment[i]) {
				return faultf(CodeInvalidTopic, "topic %s holds %s: only ASCII letters, digits, '-', '_' and dots between segments are allowed", Quote(name), quoteFirst(segment[i:]))
			}
		}
	}
	return nil
}

// ReservedTopic reports whether the topic belongs to the daemon: its first segment begins
// with '_'. Clients may subscribe to such topics but not publish.
func ReservedTopic(name string) bool { return strings.HasPrefix(name, "_") }

// presencePrefix begins the names of presence topics.
const presencePrefix = "_presence."

// PresenceTopic returns the name of the topic that has the joins and leaves of the given
// topic, or of the topics that the given pattern matches.
func PresenceTopic(name string) string { return presencePrefix + name }

// PresenceOf returns the name that PresenceTopic made a name from. ok is false for every
// other name, which PresenceOf returns as it is.
func PresenceOf(name string) (about string, ok bool) { return strings.CutPrefix(name, presencePrefix) }

func isSegmentByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// A pattern matches topics. It is written like a topic, in which '*' matches one segment and
// a last '>' matches one or more segments. A wildcard does not match a first segment that begins
// with '_', because such topics belong to the daemon.
const (
	anySegment = "*"
	anyRest    = ">"
)

// IsPattern reports whether s has a wildcard, so that it is not the name of a topic.
func IsPattern(s string) bool { return strings.ContainsAny(s, anySegment+anyRest) }

// CheckPattern returns nil if s is a valid pattern or topic. A topic matches itself. The
// error says what to change.
func CheckPattern(s string) error {
	i := -1
	for segment := range strings.SplitSeq(s, ".") {
		i++
		switch {
		case segment == "" && s != "":
			return faultf(CodeInvalidTopic, "pattern %s has an empty segment: write something between the dots", Quote(s))
		case segment == anySegment:
		case segment == anyRest && i == strings.Count(s, "."):
		case segment == anyRest:
			return faultf(CodeInvalidTopic, "pattern %s continues after '>': '>' matches all that follows, so it must be last", Quote(s))
		case IsPattern(segment):
			return faultf(CodeInvalidTopic, "pattern %s has a wildcard within the segment %s: '*' and '>' must be whole segments", Quote(s), Quote(segment))
		}
	}
	// The rest follows the rules of topics.
	return CheckTopic(wildcardsOut.Replace(s))
}

var wildcardsOut = strings.NewReplacer(anySegment, "x", anyRest, "x")

// Matches reports whether a valid pattern matches the topic. One request of a client may
// call it some 100,000 times, so it reads both once and does not allocate.
func Matches(pattern, topic string) bool {
	if ReservedTopic(topic) && (strings.HasPrefix(pattern, anySegment) || strings.HasPrefix(pattern, anyRest)) {
		return false
	}
	at := 0 // in the topic
	for i := range len(pattern) {
		switch c := pattern[i]; {
		case c == anyRest[0]: // wildcards are whole segments
			return true
		case c == anySegment[0]:
			if dot := strings.IndexByte(topic[at:], '.'); dot >= 0 {
				at += dot
			} else {
				at = len(topic)
			}
		case at == len(topic) || topic[at] != c:
			return false
		default:
			at++
		}
	}
	return at == len(topic)
}

// MoreSpecific reports whether pattern x is more specific than y, if both match a topic.
// Segment by segment, a name is more specific than '*', and '*' more than '>'. Of two different
// patterns that match the same topic, one is always more specific.
func MoreSpecific(x, y string) bool {
	for {
		a, restOfX, moreX := strings.Cut(x, ".")
		b, restOfY, moreY := strings.Cut(y, ".")
		if rank(a) != rank(b) || !moreX || !moreY {
			return rank(a) > rank(b)
		}
		x, y = restOfX, restOfY
	}
}

// rank orders segments: the most specific is the highest.
func rank(segment string) int {
	switch segment {
	case anyRest:
		return 0
	case anySegment:
		return 1
	}
	return 2
}
