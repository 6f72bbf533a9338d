package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Start is where a subscription to a topic or a pattern begins: with the next message
// (the zero From), with the oldest message in history, with the newest few, or after a
// position. Its text is the topic alone, topic@oldest, topic@newest-N, or topic@epoch:offset.
type Start struct {
	Topic  string // or a pattern
	From   From
	Newest int32  // FromNewest only: how many messages; of a pattern, of each topic
	Epoch  string // FromPosition only
	After  uint64 // FromPosition only: the offset of the last message received

	// Every is the least time between two deliveries, from max_rate; 0: not limited. A
	// Start with Every is an object in JSON, because the text does not have it.
	Every time.Duration
}

// From is the kind of a Start.
type From uint8

// The kinds of Start.
const (
	FromNow From = iota
	FromOldest
	FromPosition
	FromNewest
)

// MaxNewest bounds the messages with which a FromNewest Start begins.
const MaxNewest = 1000

// StartAfter returns the Start that resumes after p.
func StartAfter(p Position) Start {
	return Start{Topic: p.Topic, From: FromPosition, Epoch: p.Epoch, After: p.Offset}
}

// ParseStart reads a topic, topic@oldest, topic@newest-N or topic@epoch:offset.
func ParseStart(s string) (Start, error) {
	topic, rest, ok := strings.Cut(s, "@")
	if err := CheckPattern(topic); err != nil {
		return Start{}, err
	}
	switch {
	case !ok:
		return Start{Topic: topic}, nil
	case rest == "oldest":
		return Start{Topic: topic, From: FromOldest}, nil
	case strings.HasPrefix(rest, newestPrefix):
		n, err := parseNewest(rest[len(newestPrefix):])
		if err != nil {
			return Start{}, err
		}
		return Start{Topic: topic, From: FromNewest, Newest: n}, nil
	}
	p, err := ParsePosition(s)
	if err != nil {
		return Start{}, fmt.Errorf("%w; or topic@oldest, topic@newest-50, or the topic alone for new messages", err)
	}
	return StartAfter(p), nil
}

// newestPrefix cannot begin a position: no epoch has a hyphen.
const newestPrefix = "newest-"

func parseNewest(digits string) (int32, error) {
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || digits[0] == '0' || n > MaxNewest {
		return 0, faultf(CodeInvalidPosition, "newest-N must have a number from 1 to %d without leading zeros; got %s", MaxNewest, Quote(digits))
	}
	return int32(n), nil
}

// Position returns the position of a FromPosition Start.
func (s Start) Position() Position {
	return Position{Topic: s.Topic, Epoch: s.Epoch, Offset: s.After}
}

// String returns the text that ParseStart reads.
func (s Start) String() string {
	switch s.From {
	case FromOldest:
		return s.Topic + "@oldest"
	case FromNewest:
		return s.Topic + "@" + newestPrefix + strconv.Itoa(int(s.Newest))
	case FromPosition:
		return s.Position().String()
	}
	return s.Topic
}

// pacedStart is a Start with max_rate in JSON.
type pacedStart struct {
	Topic   string  `json:"topic"`
	MaxRate *string `json:"max_rate,omitempty"`
}

// MarshalJSON writes a string, or an object if the Start has a max_rate.
func (s Start) MarshalJSON() ([]byte, error) {
	if s.Every == 0 {
		return json.Marshal(s.String())
	}
	return json.Marshal(pacedStart{Topic: s.String(), MaxRate: new("1/" + s.Every.String())})
}

// UnmarshalJSON reads a string or an object, as UnmarshalStrict does.
func (s *Start) UnmarshalJSON(text []byte) error { return UnmarshalStrict(text, s) }

// UnmarshalJSONFrom reads a string or an object, with the options of d.
func (s *Start) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var p pacedStart
	switch d.PeekKind() {
	case '"':
		if err := jsonv2.UnmarshalDecode(d, &p.Topic); err != nil {
			return err
		}
	case '{':
		if err := jsonv2.UnmarshalDecode(d, &p); err != nil {
			return err
		}
	default:
		text, err := d.ReadValue()
		if err != nil {
			return err
		}
		return faultf(CodeInvalidRequest, `%s is neither a text such as prices.acme@oldest nor an object {"topic":"prices.acme","max_rate":"5/s"}`, Quote(text))
	}
	start, err := ParseStart(p.Topic)
	if err == nil && p.MaxRate != nil {
		start.Every, err = ParseRate(*p.MaxRate)
	}
	if err == nil {
		*s = start
	}
	return err
}

// Bounds of the time between two deliveries.
const (
	minEvery = time.Millisecond
	maxEvery = time.Hour
)

// ParseRate reads a max_rate, such as 5/s, 30/m or 1/10s: a whole number of deliveries in a
// time. It returns the least time between two deliveries, from a millisecond to an hour.
func ParseRate(s string) (every time.Duration, err error) {
	count, per, _ := strings.Cut(s, "/")
	if per == "s" || per == "m" || per == "h" {
		per = "1" + per
	}
	d, err := time.ParseDuration(per)
	n, errCount := strconv.ParseUint(count, 10, 32)
	every = d / time.Duration(max(n, 1))
	if err != nil || errCount != nil || count[0] == '0' || every < minEvery || every > maxEvery {
		return 0, faultf(CodeInvalidRequest, "max_rate must be a number of deliveries per time, such as 5/s, 30/m or 1/10s, from 1000/s to 1/h; got %s", Quote(s))
	}
	return every, nil
}
