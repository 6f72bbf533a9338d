//go:build unix

package loadtest

import (
	"time"

	"golang.org/x/sys/unix"
)

// ownCPU returns the CPU time of this process.
func ownCPU() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
