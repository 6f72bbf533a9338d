package loadtest

import (
	"math/rand/v2"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/require"
)

func someSchedule(random *rand.Rand) schedule {
	return schedule{
		start:     time.Duration(random.Int64N(int64(time.Minute))),
		period:    time.Millisecond + time.Duration(random.Int64N(int64(time.Minute))),
		perPeriod: 1 + random.IntN(300),
	}
}

// Every whole period falls on its instant exactly, however far out: no drift.
func TestScheduleDoesNotDrift(t *testing.T) {
	holds := func(seed uint64, far uint16) bool {
		s := someSchedule(rand.New(rand.NewPCG(seed, 1)))
		return s.instant(int(far)*s.perPeriod) == s.start+time.Duration(far)*s.period
	}
	require.NoError(t, quick.Check(holds, nil))
}

// Neighbours are a period's share apart, within a nanosecond.
func TestScheduleIsEven(t *testing.T) {
	holds := func(seed uint64, far uint32) bool {
		n := far % 1_000_000
		s := someSchedule(rand.New(rand.NewPCG(seed, 2)))
		apart := s.instant(int(n)+1) - s.instant(int(n))
		even := s.period / time.Duration(s.perPeriod)
		return apart >= even && apart <= even+1
	}
	require.NoError(t, quick.Check(holds, nil))
}

func TestScheduleWithin(t *testing.T) {
	holds := func(seed uint64) bool {
		random := rand.New(rand.NewPCG(seed, 3))
		s := someSchedule(random)
		d := time.Duration(random.Int64N(int64(10 * s.period)))
		n := s.within(d)
		return s.instant(n) >= s.start+d && (n == 0 || s.instant(n-1) < s.start+d)
	}
	require.NoError(t, quick.Check(holds, nil))
}

func TestScheduleNearestFindsEachInstant(t *testing.T) {
	holds := func(seed uint64, far uint32) bool {
		n := far % 1_000_000
		s := someSchedule(rand.New(rand.NewPCG(seed, 4)))
		return s.nearest(s.instant(int(n))-s.start) == int(n)
	}
	require.NoError(t, quick.Check(holds, nil))
}
