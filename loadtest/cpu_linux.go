package loadtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processCPU returns the CPU time of a process' living threads, in nanoseconds
// as the scheduler counts it. (/proc/PID/stat counts in ticks of 10 ms, which is
// too coarse for a short window.)
func processCPU(pid int) (time.Duration, bool) {
	if pid <= 0 {
		return 0, false
	}
	threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
	if err != nil || len(threads) == 0 {
		return 0, false
	}
	var sum time.Duration
	for _, thread := range threads {
		// A thread that ended since is left out.
		text, _ := os.ReadFile(thread)
		run, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseInt(run, 10, 64)
		sum += time.Duration(ns)
	}
	return sum, true
}

// processKnown reports whether there is such a process that may be asked.
func processKnown(pid int) bool {
	_, ok := processCPU(pid)
	return ok
}
