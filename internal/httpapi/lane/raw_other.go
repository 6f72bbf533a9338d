//go:build !linux

package lane

import "syscall"

const supported = false

func rawRead(uintptr, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }

func rawWrite(uintptr, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }
