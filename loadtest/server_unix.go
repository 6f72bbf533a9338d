//go:build unix

package loadtest

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func askToStop(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
