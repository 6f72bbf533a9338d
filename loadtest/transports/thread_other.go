//go:build !linux

package transports

import "time"

// threadCPU is not known here: what publishing costs counts as the clients'.
func threadCPU() time.Duration { return 0 }
