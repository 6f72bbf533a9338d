//go:build !linux

package daemon

import (
	"net"
	"syscall"
	"time"
)

func giveUpAfter(syscall.RawConn, time.Duration) {}
func keepUnsent(syscall.RawConn, int)            {}
func forgetSoon(*net.TCPConn)                    {}
