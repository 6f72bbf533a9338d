//go:build !unix

package loadtest

import "time"

// ownCPU is not known here; then the schedule lag alone tells a bound generator.
func ownCPU() time.Duration { return 0 }
