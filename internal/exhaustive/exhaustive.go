// Package exhaustive lets tests choose between a sample and all cases.
//
// Some tests try every case of a large space, such as a cut at every byte of every answer.
// `make test` tries a small sample of those, because it has to be fast. EXHAUSTIVE=1, which
// `make check-long` sets, tries every case, and so does CI without EXHAUSTIVE. EXHAUSTIVE=5, which
// `make check` sets, tries every fifth case, or more where the small sample has more. No
// test is skipped in any of them.
package exhaustive

import (
	"os"
	"strconv"
)

// step returns how far loops over cases go at most; 0: as far as the small sample does.
func step() int {
	env := os.Getenv("EXHAUSTIVE")
	if env == "" && os.Getenv("CI") == "" {
		return 0
	}
	n, _ := strconv.Atoi(env)
	return max(1, n)
}

// On reports whether tests try more than the small sample.
func On() bool { return step() > 0 }

// Step returns how far a loop over cases goes at a time: n for the small sample.
func Step(n int) int {
	if On() {
		return min(n, step())
	}
	return n
}
