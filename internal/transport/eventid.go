package transport

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An EventID says how far a client of an event stream has received. It is the id of an event:
//
//	a@k3:18                                the position in one topic
//	a@k3:18,b@k3:4                         in several
//	~<session>:<count>                     the first frames of a session, where positions would be too long
//	~<session>:<count>,a.*@k3:2,a.b@k3:18  the same; the positions count if the session cannot continue
type EventID struct {
	Positions []wire.Position
	Session   string // empty: only Positions count
	Count     uint64
}

// maxEventID is the longest id. Each event has its id, and the client's next request has the
// last one as a header.
const maxEventID = 2 << 10

// longestPosition returns how long the text of a position of this topic may become.
func longestPosition(topic string) int {
	return len(wire.Position{Topic: topic, Epoch: strings.Repeat("z", wire.MaxEpochBytes), Offset: wire.MaxOffset}.Append(nil))
}

// ParseEventID reads an id. It returns an error for any text that Append cannot make.
func ParseEventID(text string) (EventID, error) {
	if len(text) > maxEventID {
		return EventID{}, fmt.Errorf("the event id must have at most %d bytes; got %d", maxEventID, len(text))
	}
	var id EventID
	positions := text
	if strings.HasPrefix(text, "~") {
		reference, rest, hasPositions := strings.Cut(text, ",")
		parts := references.FindStringSubmatch(reference)
		if parts == nil {
			return EventID{}, errReference
		}
		count, err := wire.ParsePosition("t@0:" + parts[2]) // a count is written as an offset is
		if err != nil {
			return EventID{}, errReference
		}
		if id.Session, id.Count = parts[1], count.Offset; !hasPositions {
			return id, nil
		}
		positions = rest
	}
	for part := range strings.SplitSeq(positions, ",") {
		p, err := wire.ParsePosition(part)
		if err != nil {
			return EventID{}, err
		}
		if slices.ContainsFunc(id.Positions, func(had wire.Position) bool { return had.Topic == p.Topic }) {
			return EventID{}, fmt.Errorf("the event id names topic %s twice", wire.Quote(p.Topic))
		}
		id.Positions = append(id.Positions, p)
	}
	return id, nil
}

// references has the form of a reference: the session's id is in base64url (RFC 4648, section
// 5) with dots, and not longer than any that a daemon makes.
var references = regexp.MustCompile(`^~([\w.-]{1,64}):(\d+)$`)

var errReference = errors.New("the event id must begin with ~<session>:<count>")

// Append appends the text that ParseEventID reads.
func (id EventID) Append(dst []byte) []byte {
	if id.Session != "" {
		dst = append(append(append(dst, '~'), id.Session...), ':')
		dst = strconv.AppendUint(dst, id.Count, 10)
	}
	for i, p := range id.Positions {
		if i > 0 || id.Session != "" {
			dst = append(dst, ',')
		}
		dst = p.Append(dst)
	}
	return dst
}
