package loadtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processesCPU returns the CPU time of the living threads of a process and of
// all its descendants, such as nginx's workers, in nanoseconds as the scheduler
// counts it. (/proc/PID/stat counts in ticks of 10 ms, which is too coarse for a
// short window.)
func processesCPU(pid int) (time.Duration, bool) {
	if pid <= 0 {
		return 0, false
	}
	var sum time.Duration
	known := false
	for _, p := range family(pid) {
		threads, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(p), "task", "*", "schedstat"))
		known = known || p == pid && len(threads) > 0
		for _, thread := range threads {
			// A thread that ended since is left out.
			text, _ := os.ReadFile(thread)
			run, _, _ := strings.Cut(string(text), " ")
			ns, _ := strconv.ParseInt(run, 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum, known
}

// processesResident returns the resident memory of a process and its descendants,
// added up: what they share counts for each. 0: not known.
func processesResident(pid int) int64 {
	if pid <= 0 {
		return 0
	}
	var sum int64
	for _, p := range family(pid) {
		text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p), "statm"))
		if sizes := strings.Fields(string(text)); len(sizes) > 1 {
			pages, _ := strconv.ParseInt(sizes[1], 10, 64)
			sum += pages * int64(os.Getpagesize())
		}
	}
	return sum
}

// family returns a process and all its descendants.
func family(pid int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, _ := os.ReadFile(stat)
		// PID (NAME) STATE PARENT …; a name may have spaces and parentheses.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) < 2 {
			continue // it has ended
		}
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// processKnown reports whether there is such a process that may be asked.
func processKnown(pid int) bool {
	_, ok := processesCPU(pid)
	return ok
}
