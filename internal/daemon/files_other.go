//go:build !unix

package daemon

func raiseOpenFiles() openFiles { return 0 }
