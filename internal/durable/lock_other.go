//go:build !unix || aix || solaris

package durable

import "os"

const noFollow = 0

// lock locks nothing: without flock, two processes may write one file.
func lock(*os.File, bool) error { return nil }

func keepOwner(*os.File, os.FileInfo) error { return nil }
