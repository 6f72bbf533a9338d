//go:build !unix

package listen

// RaiseOpenFiles returns 0: the limit is unknown.
func RaiseOpenFiles() OpenFiles { return 0 }
