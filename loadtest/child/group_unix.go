//go:build unix

package child

import (
	"os"
	"syscall"
)

func askToStop(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
