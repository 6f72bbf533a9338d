//go:build !unix

package child

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }

// askToStop cannot ask here.
func askToStop(p *os.Process) error { return p.Kill() }
