package lane

import (
	"runtime"
	"sync"
	"time"
)

// A loop owns connections: one goroutine does everything that is done to them, in
// turns. It hears of them from the kernel, and by letters. It never waits: neither for
// a client nor for a lock that is held for long. Work that must wait gets a goroutine
// of its own, which posts a letter at its end.
//
// Go's own poller would wake a goroutine for each connection. For the second that is
// ready together with a first it wakes a thread, too, which mostly finds nothing to do:
// an eighth of the daemon's CPU in a collaboration of pairs. The goroutines' stacks were
// a third of the memory of a parked poll.
//
// A loop that also wrote the sessions' frames was simpler, but added 3 to 10 µs to a
// delivery when it slept. So the output of a connection with a parked poll is lent to
// the session.
type loop struct {
	poller
	running sync.WaitGroup // run

	mail    sync.Mutex // guards letters and asleep; a leaf: sessions post under their locks
	letters []letter
	asleep  bool // run waits for the kernel, so a letter must wake it

	// Owned by run.
	taken   []letter            // from the mailbox
	opened  int                 // how many of taken are done
	conns   []*conn             // by descriptor
	delayed map[*conn]time.Time // when their delayed refusals are due
	tired   bool                // a connection used its turn up
	closing bool                // connections that still come are closed
}

// A letter asks a loop to do something to its connection c, unless that has left. A
// letter without a connection is for the loop.
type letter struct {
	c  *conn
	do func(*conn)
}

// post has the loop do something to c. It does not block, and anyone may call it while
// c has not left. A letter costs about 20 ns, and 600 more if the loop sleeps.
func (l *loop) post(c *conn, do func(*conn)) {
	l.mail.Lock()
	defer l.mail.Unlock()
	l.letters = append(l.letters, letter{c, do})
	if l.asleep {
		l.asleep = false
		l.wake() // with the lock: a letter that comes after shut must not write to its descriptor
	}
}

// deliver does what was posted, some letters at a time so that the kernel's events have
// their turn, too. false: nothing is left to do, and the next letter wakes the loop.
// With more, the kernel has more events.
func (l *loop) deliver(more bool) (again bool) {
	if l.opened == len(l.taken) {
		if cap(l.taken) > keptLetters {
			l.taken = nil
		}
		l.mail.Lock()
		l.letters, l.taken, l.opened = l.taken[:0], l.letters, 0
		l.asleep = len(l.taken) == 0 && !more
		l.mail.Unlock()
	}
	part := l.taken[l.opened:min(l.opened+atOnce, len(l.taken))]
	l.opened += len(part)
	for i, letter := range part {
		part[i].c, part[i].do = nil, nil
		switch c := letter.c; {
		case c == nil:
			letter.do(nil)
		case c.ending != left:
			letter.do(c)
			c.proceed()
		}
	}
	if more || len(part) == atOnce || l.tired {
		l.tired = false
		runtime.Gosched()
		return true
	}
	return len(part) > 0
}

const (
	atOnce      = 128  // events, or letters, between two looks at the others
	keptLetters = 4096 // how large an empty mailbox stays
)

// happened handles an event of the kernel. A descriptor's next owner cannot get an
// event of the last: leave takes the descriptor off the epoll instance, and the next
// owner joins by letter, after the events that were taken together.
func (l *loop) happened(fd int, what uint32) {
	if fd < len(l.conns) && l.conns[fd] != nil {
		l.conns[fd].happened(what)
	}
}

// join makes c one of the loop's connections.
func (l *loop) join(c *conn) {
	for len(l.conns) <= c.fd {
		l.conns = append(l.conns, nil)
	}
	l.conns[c.fd] = c
	if l.watch(c.fd, arrivals) != nil || l.closing {
		c.close()
	}
}

// leave ends what join began, before the descriptor is closed.
func (l *loop) leave(c *conn) {
	l.conns[c.fd] = nil
	delete(l.delayed, c)
	l.remove(c.fd)
}

// each does something to all connections, and goes on with them.
func (l *loop) each(do func(*conn)) {
	for _, c := range l.conns {
		if c != nil {
			do(c)
			c.proceed()
		}
	}
}

// tick answers the delayed refusals that are due, and with look ends what takes too
// long.
func (l *loop) tick(now time.Time, look bool) {
	for c, due := range l.delayed {
		if !now.Before(due) {
			delete(l.delayed, c)
			c.answerRefusal()
			c.proceed()
		}
	}
	if !look {
		return
	}
	for _, c := range l.conns {
		if c != nil && c.due < c.lane.age() {
			c.overdue()
			c.proceed()
		}
	}
}

// delay has a refusal told when it is due.
func (l *loop) delay(c *conn, due time.Time) {
	if l.delayed == nil {
		l.delayed = make(map[*conn]time.Time)
	}
	l.delayed[c] = due
}

// closeAll closes all connections, and those that still come.
func (l *loop) closeAll() {
	l.closing = true
	l.each((*conn).close)
}
