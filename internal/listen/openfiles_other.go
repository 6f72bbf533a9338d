//go:build !unix

package listen

// OpenFilesLimit returns 0: the limit is not known.
func OpenFilesLimit() OpenFiles { return 0 }
