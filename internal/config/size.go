package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// units of sizes, the largest first. Powers of 1000 are left out: who writes MB
// may mean either.
var units = []struct {
	suffix string
	bytes  int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// parseSize reads a plain number of bytes, or one of KiB, MiB or GiB.
func parseSize(text string) (int, error) {
	digits, unit := text, 1
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			digits, unit = rest, u.bytes
			break
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0, err
	}
	if n > math.MaxInt/unit || n < 0 {
		return 0, errors.New("out of range")
	}
	return n * unit, nil
}

// formatSize writes n in the largest unit that keeps it whole.
func formatSize(n int) string {
	for _, u := range units {
		if n != 0 && n%u.bytes == 0 {
			return strconv.Itoa(n/u.bytes) + u.suffix
		}
	}
	return strconv.Itoa(n)
}
