package child

import "syscall"

// ownGroup has the kernel stop the child if this process ends without doing so:
// killed, or in a panic.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
