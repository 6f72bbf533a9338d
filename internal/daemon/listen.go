package daemon

import (
	"context"
	"fmt"
	"net"
	"time"
)

// A client that vanished, without a word, is noticed when it is asked: keepAlive is for
// connections on which nothing is sent.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// giveUpBehind is how much longer than a write may take the kernel waits for a client
// to acknowledge what was written: a client that is there and does not read is the
// daemon's to end, who looks at some connections each five seconds only.
const giveUpBehind = 15 * time.Second

// unsentBytes is what the kernel keeps for a client beyond what is on its way. What it
// does not take stays with the daemon, which bounds and counts it.
const unsentBytes = 128 << 10

// bind binds a listener. writeTimeout is how long a write to a client may take.
func bind(name, address string, writeTimeout time.Duration) (*net.TCPListener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	lc.SetMultipathTCP(false) // Go's default for listeners; Linux does not hand what is set below on to its connections
	l, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen.%s: %w (--listen-%[1]s chooses another address)", name, err)
	}
	bound := l.(*net.TCPListener) //nolint:forcetypeassert // it is what listens on "tcp"
	if raw, err := bound.SyscallConn(); err == nil {
		giveUpAfter(raw, writeTimeout+giveUpBehind)
		keepUnsent(raw, unsentBytes)
	}
	return bound, nil
}
