package limit

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"golang.org/x/time/rate"
)

// A Rate is how often something may happen. The zero Rate is as often as you like.
type Rate struct {
	PerSecond float64
	Burst     int // at once; 0: those of one second, at least 1
}

// ParseRate reads "100/s", "30/m", "100/s burst 500" or "off".
func ParseRate(text string) (Rate, error) {
	if text == "off" {
		return Rate{}, nil
	}
	often, burst, bursts := strings.Cut(text, " burst ")
	count, per, _ := strings.Cut(often, "/")
	seconds, known := rateUnits[per]
	if !known || !isDecimal(count) || bursts && !isDecimal(burst) {
		return Rate{}, errRate
	}
	n, err := strconv.ParseFloat(count, 64)
	r := Rate{PerSecond: n / seconds}
	if err == nil && bursts {
		r.Burst, err = strconv.Atoi(burst)
	}
	if err != nil || !r.Valid() || r.PerSecond == 0 || bursts && r.Burst == 0 {
		return Rate{}, errRate
	}
	return r, nil
}

var errRate = errors.New("not a rate")

// isDecimal reports whether s has digits and a point only: no sign, no exponent.
func isDecimal(s string) bool { return s != "" && strings.Trim(s, "0123456789.") == "" }

// What rates may be. More often is without bound, and more seldom is never.
const (
	maxPerSecond = 1e9
	minPerSecond = 1.0 / 3600
	maxBurst     = 1e9
)

// Valid reports whether r is off, or from once an hour to a billion times a second
// with at most a billion at once.
func (r Rate) Valid() bool {
	if r.PerSecond == 0 {
		return r.Burst == 0
	}
	return minPerSecond <= r.PerSecond && r.PerSecond <= maxPerSecond && 0 <= r.Burst && r.Burst <= maxBurst
}

// String writes r as ParseRate reads it.
func (r Rate) String() string {
	switch {
	case r.PerSecond == 0:
		return "off"
	case r.Burst == 0:
		return r.often()
	}
	return r.often() + " burst " + strconv.Itoa(r.Burst)
}

// often is how often, in the unit that makes it a whole number if there is one.
func (r Rate) often() string {
	for _, unit := range []string{"s", "m", "h"} {
		if n := math.Round(r.PerSecond * rateUnits[unit]); n/rateUnits[unit] == r.PerSecond {
			return strconv.FormatFloat(n, 'f', -1, 64) + "/" + unit
		}
	}
	return strconv.FormatFloat(r.PerSecond, 'f', -1, 64) + "/s"
}

// rateUnits has the seconds of the units.
var rateUnits = map[string]float64{"s": 1, "m": 60, "h": 3600}

// burst is how many may come at once.
func (r Rate) burst() int {
	if r.Burst > 0 {
		return r.Burst
	}
	return max(1, int(math.Ceil(r.PerSecond)))
}

// bucket returns a full bucket of the rate.
func (r Rate) bucket() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(r.PerSecond), r.burst())
}
