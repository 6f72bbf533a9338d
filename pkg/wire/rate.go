package wire

import (
	"strconv"
	"strings"
	"time"
)

// Bounds of the time between deliveries that a max_rate may ask for.
const (
	minEvery = time.Millisecond
	maxEvery = time.Hour
)

// ParseRate reads a max_rate, such as 5/s, 30/m or 1/10s: a whole number of
// deliveries, and the time in which they may come. It returns the least time
// between two deliveries, from a millisecond to an hour.
func ParseRate(s string) (every time.Duration, err error) {
	count, per, ok := strings.Cut(s, "/")
	n, err := strconv.ParseUint(count, 10, 32)
	if !ok || err != nil || n == 0 || count[0] == '0' {
		return 0, badRate(s)
	}
	if per == "s" || per == "m" || per == "h" {
		per = "1" + per
	}
	d, err := time.ParseDuration(per)
	every = d / time.Duration(n)
	if err != nil || every < minEvery || every > maxEvery {
		return 0, badRate(s)
	}
	return every, nil
}

func badRate(s string) error {
	return faultf(CodeInvalidRequest, "max_rate %.40q is not a number of deliveries and a time, such as 5/s, 30/m or 1/10s, from 1000/s to 1/h", s)
}

// formatRate returns what ParseRate reads.
func formatRate(every time.Duration) string { return "1/" + every.String() }
