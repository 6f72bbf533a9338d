package wire

import (
	"slices"
	"strconv"
	"strings"
)

// An EventID is what a client of an event stream has, as the id of its last event
// says:
//
//	a@k3:18            the position in one topic
//	a@k3:18,b@k3:4     in several
//	~<session>:<count> the first frames of a session, where positions would be too long
type EventID struct {
	Positions []Position
	Session   string // empty: Positions count
	Count     uint64
}

// MaxEventID is how long an id of positions may be: it comes with each event, and as
// a header with the client's next request.
const MaxEventID = 2 << 10

// LongestPosition is how long the text of a position of this topic may become.
func LongestPosition(topic string) int {
	return Position{Topic: topic, Epoch: strings.Repeat("z", maxEpochBytes), Offset: maxOffset}.length()
}

func (p Position) length() int { return len(p.Append(nil)) }

// ParseEventID reads an id strictly: one that was not made here is not to be guessed
// at.
func ParseEventID(text string) (EventID, error) {
	if reference, ok := strings.CutPrefix(text, "~"); ok {
		return parseReference(reference)
	}
	if len(text) > MaxEventID {
		return EventID{}, faultf(CodeInvalidPosition, "event id has %d bytes, more than any has", len(text))
	}
	var id EventID
	for part := range strings.SplitSeq(text, ",") {
		p, err := ParsePosition(part)
		if err != nil {
			return EventID{}, err
		}
		if slices.ContainsFunc(id.Positions, func(had Position) bool { return had.Topic == p.Topic }) {
			return EventID{}, faultf(CodeInvalidPosition, "event id names topic %q twice", p.Topic)
		}
		id.Positions = append(id.Positions, p)
	}
	return id, nil
}

func parseReference(text string) (EventID, error) {
	session, digits, _ := strings.Cut(text, ":")
	count, err := parseOffset(digits)
	if err != nil || !isSessionID(session) {
		return EventID{}, faultf(CodeInvalidPosition, "event id is no ~<session>:<count>")
	}
	return EventID{Session: session, Count: count}, nil
}

// maxSessionID is longer than any id that a daemon makes.
const maxSessionID = 64

// isSessionID reports whether s may be the id of a session: base64url (RFC 4648,
// section 5) and dots.
func isSessionID(s string) bool {
	return s != "" && len(s) <= maxSessionID && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.')
	})
}

// Append appends the text that ParseEventID reads.
func (id EventID) Append(dst []byte) []byte {
	if id.Session != "" {
		dst = append(append(append(dst, '~'), id.Session...), ':')
		return strconv.AppendUint(dst, id.Count, 10)
	}
	for i, p := range id.Positions {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = p.Append(dst)
	}
	return dst
}
