package loadtest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// simulated is another process' clock, ahead of ours, reached by trips of the given
// lengths there and back.
type simulated struct {
	now         time.Duration
	ahead       time.Duration
	there, back []time.Duration
	asked       int
}

func (s *simulated) ask() (clockReading, error) {
	i := s.asked % len(s.there)
	s.asked++
	s.now += s.there[i]
	r := clockReading{Now: s.now + s.ahead}
	s.now += s.back[i]
	return r, nil
}

func (s *simulated) clock() time.Duration { return s.now }

// The shortest exchange tells most, and what it tells is true within what it says.
func TestClocksOfOtherMachinesAreKnownByTheShortestExchange(t *testing.T) {
	for name, s := range map[string]*simulated{
		"even trips":      {ahead: time.Hour, there: []time.Duration{5 * ms, ms}, back: []time.Duration{5 * ms, ms}},
		"uneven trips":    {ahead: -time.Minute, there: []time.Duration{9 * ms, 2 * ms}, back: []time.Duration{ms, 0}},
		"all the way out": {ahead: 7 * ms, there: []time.Duration{3 * ms}, back: []time.Duration{0}},
	} {
		c, err := compareClocks(s.clock, s.ask)
		require.NoError(t, err)
		require.False(t, c.shared, name)
		require.Equal(t, exchanges, s.asked)
		require.LessOrEqual(t, (c.ahead - s.ahead).Abs(), c.uncertainty, name)
		require.LessOrEqual(t, c.uncertainty, 2*ms, name)
	}
}

func TestAClockThatDoesNotAnswer(t *testing.T) {
	s := &simulated{}
	_, err := compareClocks(s.clock, func() (clockReading, error) { return clockReading{}, errors.New("gone") })
	require.EqualError(t, err, "gone")
}

// What drifted during a test is part of how uncertain it is.
func TestDriftIsUncertainty(t *testing.T) {
	before, after := clock{ahead: 10 * ms, uncertainty: ms}, clock{ahead: 7 * ms, uncertainty: 2 * ms}
	require.Equal(t, AgentClock{UncertaintyMS: 5, DriftMS: 3}, before.result(after))
}
