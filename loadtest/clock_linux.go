package loadtest

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// monotonic returns the kernel's clock, which all processes of a boot share; 0: not
// known.
func monotonic() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// bootID tells which boot of which machine this is; empty: not known.
func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}
