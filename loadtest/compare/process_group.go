//go:build linux || darwin

package main

import (
	"fmt"
	"os"
	"syscall"
)

// limitOpenFiles gives this process, and so all that it starts, exactly the limit.
func limitOpenFiles(limit uint64) error {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return fmt.Errorf("limit open files: %w", err)
	}
	if r.Max < limit {
		return fmt.Errorf("limit open files: each process needs %d, and %d are allowed: raise them with ulimit -n", limit, r.Max)
	}
	// Children inherit what was set by this call, else what was found at the start.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fmt.Errorf("limit open files: %w", err)
	}
	return nil
}

func askToStop(p *os.Process) { _ = p.Signal(syscall.SIGTERM) }

// killGroup ends what is left of a process and its children.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
