//go:build !linux

package loadtest

import "time"

// monotonic is not known to be shared here: clocks are compared by asking.
func monotonic() time.Duration { return 0 }

func bootID() string { return "" }
