//go:build unix

package loadtest

import (
	"os"
	"syscall"
)

func askToStop(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
