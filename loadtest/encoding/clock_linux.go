package encoding

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf returns the CPU time of the calling thread while do ran. The wall clock
// would count the time in which others had the core, which on a saturated machine
// is most of it. The goroutine keeps its thread meanwhile; the cost is two system
// calls.
func cpuOf(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := threadCPU()
	do()
	return threadCPU() - begin
}

func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
