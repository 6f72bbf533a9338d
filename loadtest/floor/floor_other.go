//go:build !linux

package floor

import (
	"errors"
	"net"
)

// A Server cannot be had here.
type Server struct{}

var errLinuxOnly = errors.New("the floor needs Linux: it is made of epoll and raw system calls")

// Listen says that there is no floor here.
func Listen(string) (*Server, error) { return nil, errLinuxOnly }

// Addr is never called, since there is no Server.
func (*Server) Addr() net.Addr { return nil }

// Serve is never called, since there is no Server.
func (*Server) Serve() error { return errLinuxOnly }

// Stop is never called, since there is no Server.
func (*Server) Stop() {}
