//go:build !unix || aix || solaris

package store

import "os"

// lock locks nothing: without flock, two daemons may share a file.
func lock(*os.File) error { return nil }
