//go:build unix

package daemon

import "syscall"

// raiseOpenFiles raises the soft limit of open files to the hard one, and returns what
// it is then. The Go runtime has done so, unless somebody lowered it since.
func raiseOpenFiles() openFiles {
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
	if limit.Cur > mostFiles {
		return 0
	}
	return openFiles(limit.Cur)
}

// mostFiles is what no process can have, where systems say that there is no limit.
const mostFiles = 1 << 30
