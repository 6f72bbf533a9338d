package transport

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An EventID says what a client of an event stream has. It is the id of an event:
//
//	a@k3:18            the position in one topic
//	a@k3:18,b@k3:4     in several
//	~<session>:<count> the first frames of a session, where positions would be too long
type EventID struct {
	Positions []wire.Position
	Session   string // empty: Positions count
	Count     uint64
}

// maxEventID is the longest id of positions. Each event has its id, and the client's next
// request has the last one as a header.
const maxEventID = 2 << 10

// longestPosition returns how long the text of a position of this topic may become.
func longestPosition(topic string) int {
	return len(wire.Position{Topic: topic, Epoch: strings.Repeat("z", wire.MaxEpochBytes), Offset: wire.MaxOffset}.Append(nil))
}

// ParseEventID reads an id. It returns an error for any text that Append cannot make.
func ParseEventID(text string) (EventID, error) {
	if reference, ok := strings.CutPrefix(text, "~"); ok {
		return parseReference(reference)
	}
	if len(text) > maxEventID {
		return EventID{}, fmt.Errorf("event id has %d bytes; the longest has %d", len(text), maxEventID)
	}
	var id EventID
	for part := range strings.SplitSeq(text, ",") {
		p, err := wire.ParsePosition(part)
		if err != nil {
			return EventID{}, err
		}
		if slices.ContainsFunc(id.Positions, func(had wire.Position) bool { return had.Topic == p.Topic }) {
			return EventID{}, fmt.Errorf("event id names topic %s twice", wire.Quote(p.Topic))
		}
		id.Positions = append(id.Positions, p)
	}
	return id, nil
}

func parseReference(text string) (EventID, error) {
	session, digits, _ := strings.Cut(text, ":")
	count, err := wire.ParsePosition("t@0:" + digits) // a count is written as an offset is
	if err != nil || !isSessionID(session) {
		return EventID{}, fmt.Errorf("event id is not ~<session>:<count>")
	}
	return EventID{Session: session, Count: count.Offset}, nil
}

// maxSessionID is longer than any session id that a daemon makes.
const maxSessionID = 64

// isSessionID reports whether s could be a session id: base64url (RFC 4648, section 5) and
// dots.
func isSessionID(s string) bool {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
	return s != "" && len(s) <= maxSessionID && strings.Trim(s, allowed) == ""
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
