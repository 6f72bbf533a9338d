//go:build unix

package listen

import "syscall"

// OpenFilesLimit returns the soft limit of open files. The Go runtime raises it to the hard
// limit at the start of the process.
func OpenFilesLimit() OpenFiles {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur > maxOpenFiles {
		return 0
	}
	return OpenFiles(limit.Cur)
}

// maxOpenFiles is more than any process can have. Some systems report a huge number
// instead of a limit.
const maxOpenFiles = 1 << 30
