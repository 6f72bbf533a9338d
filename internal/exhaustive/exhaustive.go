// Package exhaustive lets tests choose between a sample and all cases.
//
// Some tests try every case of a large space, as a cut at every byte of every answer.
// `make test` tries a sample of those, to be fast. `make check` sets EXHAUSTIVE, and CI
// sets CI: then tests try every case. No test is skipped either way.
package exhaustive

import "os"

// On reports whether tests try every case.
func On() bool { return os.Getenv("EXHAUSTIVE") != "" || os.Getenv("CI") != "" }

// Step returns how far a loop over cases goes at a time: 1 if On, otherwise n.
func Step(n int) int {
	if On() {
		return 1
	}
	return n
}
