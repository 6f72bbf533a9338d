package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A Start is where a subscription to a topic begins: at now (the zero value of
// From), at the oldest message held, or after a position. Its text is the
// topic alone, topic@oldest, or topic@epoch:offset. In the topic's place there may
// be a pattern.
type Start struct {
	Topic string // or a pattern
	From  From
	Epoch string // FromPosition only
	After uint64 // FromPosition only: the offset of the last message had

	// Every is the least time between two deliveries, from max_rate; 0 is none. It is
	// not in the text, so JSON has an object for a Start with one.
	Every time.Duration
}

// From says which kind a Start is.
type From uint8

// The kinds of Start.
const (
	FromNow From = iota
	FromOldest
	FromPosition
)

// StartAfter returns the Start that resumes after p.
func StartAfter(p Position) Start {
	return Start{Topic: p.Topic, From: FromPosition, Epoch: p.Epoch, After: p.Offset}
}

// ParseStart reads a topic, topic@oldest or topic@epoch:offset.
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
	}
	p, err := ParsePosition(s)
	if err != nil {
		return Start{}, fmt.Errorf("%w; or topic@oldest, or the topic alone for now", err)
	}
	return StartAfter(p), nil
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
	case FromPosition:
		return s.Position().String()
	}
	return s.Topic
}

// pacedStart is the JSON of a Start with a max_rate.
type pacedStart struct {
	Topic   string `json:"topic"`
	MaxRate string `json:"max_rate,omitempty"`
}

// MarshalJSON makes a Start a string, or an object if it has a max_rate.
func (s Start) MarshalJSON() ([]byte, error) {
	if s.Every == 0 {
		return json.Marshal(s.String())
	}
	return json.Marshal(pacedStart{Topic: s.String(), MaxRate: formatRate(s.Every)})
}

// UnmarshalJSON reads a string or an object, strictly.
func (s *Start) UnmarshalJSON(text []byte) error {
	var p pacedStart
	if err := unmarshalStart(text, &p); err != nil {
		return err
	}
	start, err := ParseStart(p.Topic)
	if err == nil && p.MaxRate != "" {
		start.Every, err = ParseRate(p.MaxRate)
	}
	if err == nil {
		*s = start
	}
	return err
}

func unmarshalStart(text []byte, p *pacedStart) error {
	if bytes.HasPrefix(text, []byte{'"'}) {
		return json.Unmarshal(text, &p.Topic)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		return faultf(CodeInvalidRequest, `%.80s is neither a start nor an object {"topic":"prices.acme","max_rate":"5/s"}`, text)
	}
	return nil
}
