//go:build unix

package listen

import "syscall"

// RaiseOpenFiles raises the soft limit of open files to the hard one, and returns the
// result. The Go runtime has done so at the start, but the limit may have changed since.
func RaiseOpenFiles() OpenFiles {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	if soft := limit.Cur; soft < limit.Max {
		limit.Cur = limit.Max
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
			limit.Cur = soft
		}
	}
	if limit.Cur > maxOpenFiles {
		return 0
	}
	return OpenFiles(limit.Cur)
}

// maxOpenFiles is more than any process can have. Some systems report a huge number
// instead of a limit.
const maxOpenFiles = 1 << 30
