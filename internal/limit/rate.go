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
	count, per, ok := strings.Cut(often, "/")
	n, err := strconv.ParseFloat(count, 64)
	seconds, known := map[string]float64{"s": 1, "m": 60, "h": 3600}[per]
	if !ok || err != nil || !known || !(n > 0) || n > maxRate || strings.TrimLeft(count, "0123456789.") != "" {
		return Rate{}, errRate
	}
	r := Rate{PerSecond: n / seconds}
	if bursts {
		if r.Burst, err = strconv.Atoi(burst); err != nil || r.Burst < 1 || r.Burst > maxRate {
			return Rate{}, errRate
		}
	}
	return r, nil
}

// maxRate bounds rates and bursts: more is none.
const maxRate = 1e9

var errRate = errors.New("not a rate")

// String writes r as ParseRate reads it.
func (r Rate) String() string {
	if r.PerSecond == 0 {
		return "off"
	}
	text := ""
	for _, unit := range rateUnits {
		text = strconv.FormatFloat(r.PerSecond*unit.seconds, 'g', 12, 64) + unit.name
		if n := r.PerSecond * unit.seconds; n >= 1 && math.Abs(n-math.Round(n)) < 1e-9*n {
			text = strconv.FormatFloat(math.Round(n), 'f', -1, 64) + unit.name
			break
		}
	}
	if r.Burst > 0 {
		text += " burst " + strconv.Itoa(r.Burst)
	}
	return text
}

var rateUnits = []struct {
	name    string
	seconds float64
}{{"/s", 1}, {"/m", 60}, {"/h", 3600}}

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
