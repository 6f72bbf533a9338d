//go:build !linux

package listen

import (
	"net"
	"syscall"
	"time"
)

func limitUnacked(syscall.RawConn, time.Duration) {}
func limitUnsent(syscall.RawConn, int)            {}
func skipFinWait2(*net.TCPConn)                   {}
