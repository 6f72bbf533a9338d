//go:build unix

package soak

import (
	"os"
	"syscall"
)

func askToStop(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
