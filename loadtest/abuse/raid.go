package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// An attack is one way to take a server from its other clients. It is bounded in
// connections, in operations a second, and in time; within that it does its worst.
type attack struct {
	name      string
	what      string // in a few words
	first     int    // of the addresses that it comes from; see sourceAddress
	sources   int    // how many those are
	pace      int    // operations a second; of those that hold connections, openings
	crowd     int    // connections at one time, at most
	run       func(ctx context.Context, r *raid) error
	tiny      bool // receives into buffers as small as the kernel allows
	unhurried bool // answers are waited for, however long they take
	pipelined int  // requests that are sent at one time; 0: one
}

// small returns the attack at a tenth, which only shows that it works.
func (a attack) small() attack {
	const part = 10
	a.sources = max(a.sources/part, 1)
	a.pace = max(a.pace/part, 1)
	a.crowd = max(a.crowd/part, 2)
	return a
}

// A raid is one attack on one target, under way. Everything may be called
// concurrently.
type raid struct {
	attack
	target string // host:port
	paced  *pace
	tally  *tally
	open   *lines
}

// lines are the connections of a raid that are open.
type lines struct {
	mu   sync.Mutex
	open map[*line]struct{} // nil once hung up
}

// A line is a connection of a raid.
type line struct {
	net.Conn
	raid *raid
	once sync.Once
}

// connects bounds how long an attacker waits for a connection.
const connects = 3 * time.Second

// carryOut attacks the target for so long, and returns what was counted.
func carryOut(ctx context.Context, a attack, target string, lasts time.Duration) Raid {
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	r := &raid{attack: a, target: target, paced: newPace(a.pace), tally: newTally(), open: &lines{open: map[*line]struct{}{}}}
	defer context.AfterFunc(ctx, r.open.hangUp)()
	var pacing sync.WaitGroup
	defer pacing.Wait()
	pacing.Go(func() { r.paced.run(ctx, a.pace) })
	begun := time.Now()
	err := a.run(ctx, r)
	r.open.hangUp()
	cancel()
	found := r.tally.result(time.Since(begun))
	if err != nil {
		found.NotBegun = err.Error()
	}
	return found
}

// hangUp ends all connections, and lets no more be made.
func (s *lines) hangUp() {
	s.mu.Lock()
	open := s.open
	s.open = nil
	s.mu.Unlock()
	for l := range open {
		l.end()
	}
}

// keep reports whether there may be more connections.
func (s *lines) keep(l *line) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		return false
	}
	s.open[l] = struct{}{}
	return true
}

func (s *lines) drop(l *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, l) // of a nil map, too
}

// dial connects from one of the attack's addresses.
func (r *raid) dial(ctx context.Context, number int) (*line, error) {
	d := net.Dialer{Timeout: connects, LocalAddr: sourceAddress(r.first + number%r.sources), KeepAlive: -1}
	if r.tiny {
		d.Control = tinyBuffer
	}
	conn, err := d.DialContext(ctx, "tcp", r.target)
	if err != nil {
		return nil, err
	}
	// Closing resets: what is left of one attack must not be in the next one's way.
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	l := &line{Conn: conn, raid: r}
	if !r.open.keep(l) {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	r.tally.opened()
	return l, nil
}

// end closes the connection. It may be called again.
func (l *line) end() {
	l.once.Do(func() {
		_ = l.Close()
		l.raid.tally.closed()
		l.raid.open.drop(l)
	})
}

// say writes, and counts what went.
func (l *line) say(b []byte) error {
	n, err := l.Write(b)
	l.raid.tally.sent(n)
	return err
}

// sourceAddress is one of the addresses of attackers, 127.0.2.1 and on, which are
// not those of victims.
func sourceAddress(n int) *net.TCPAddr {
	const network, hosts = 2, 254
	return &net.TCPAddr{IP: net.IPv4(127, 0, network+byte(n/hosts), 1+byte(n%hosts))}
}

// each runs n workers until all are done.
func each(n int, work func(number int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { work(i) })
	}
	wg.Wait()
}

// isTimeout tells a deadline that has passed from a connection that has ended.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// unknownAttack is an order that nobody can carry out.
func unknownAttack(name string) error { return fmt.Errorf("attack %q is not known", name) }
