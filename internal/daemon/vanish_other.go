//go:build !linux

package daemon

import (
	"net"
	"syscall"
	"time"
)

func giveUpAfter(syscall.RawConn, time.Duration) {}
func forgetSoon(*net.TCPConn)                    {}
