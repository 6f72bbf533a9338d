package main

import "syscall"

// ownGroup makes a process the first of a group, which can be ended together, and
// has the kernel end it if this process goes without doing so. Processes are
// started on the main thread alone, since the kernel takes a thread for the parent.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
