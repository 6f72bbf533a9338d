//go:build !unix

package main

import "syscall"

// tinyBuffer does without.
func tinyBuffer(_, _ string, _ syscall.RawConn) error { return nil }
