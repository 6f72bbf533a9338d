package lane

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A loop owns connections: one goroutine does all work for them, in turns. It gets events
// from the kernel, and letters from other goroutines. It never waits for a client, nor for
// a lock that is held for long. Work that must wait, or takes more than about 2 ms, gets a
// goroutine of its own, which posts a letter at its end. For a publish that waits for the
// log, the log posts it.
//
// Go's own poller would wake a goroutine for each connection. If two connections are ready
// at once it also wakes a second thread, which mostly finds nothing to do: an eighth of
// the daemon's CPU when pairs of clients collaborate. Stacks of goroutines took a third of
// the memory of a parked poll.
//
// A loop that also wrote the sessions' frames was simpler, but added 3 to 10 µs to a
// delivery when it slept. So the loop lends the output of a connection with a parked poll
// to the session.
type loop struct {
	poller
	running sync.WaitGroup // run

	begun   time.Time    // immutable
	longest atomic.Int64 // turn since Lane.Tick asked, in nanoseconds

	mail    sync.Mutex // guards letters and asleep; a leaf: sessions post under their locks
	letters []letter
	asleep  bool // run waits for the kernel, so a letter must wake it

	// Owned by run.
	taken   []letter            // from the mailbox
	opened  int                 // how many of taken are done
	conns   []*conn             // by descriptor
	delayed map[*conn]time.Time // when to answer with their delayed refusals
	tired   bool                // a connection used all steps of its turn
	clock   time.Duration       // when the last turn ended, after begun
	closing bool                // connections that still join are closed
}

// A letter asks a loop to do something to its connection c, unless c has left. A letter
// without a connection is for the loop.
type letter struct {
	c  *conn
	do func(*conn)
}

// post has the loop do something to c. It does not block. Any goroutine may call it until
// c has left. A letter costs about 20 ns, and 600 more if the loop sleeps.
func (l *loop) post(c *conn, do func(*conn)) {
	l.mail.Lock()
	defer l.mail.Unlock()
	l.letters = append(l.letters, letter{c, do})
	if l.asleep {
		l.asleep = false
		_, _ = rawWrite(l.event, one) // under the lock: a letter after shut must not write to its descriptor
	}
}

// one wakes a loop. Nobody reads its eventfd: each write is a new edge, and the counter holds 2^64
// writes.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// deliver opens some letters, so that events get their turn soon. It returns false if no
// work is left: then the next letter wakes the loop. more says that the kernel has more
// events.
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
		l.noteTurn()
	}
	if more || len(part) == atOnce || l.tired {
		l.tired = false
		runtime.Gosched()
		return true
	}
	return len(part) > 0
}

// noteTurn notes how long a turn took, which ends now: all other connections waited for it.
func (l *loop) noteTurn() {
	now := time.Since(l.begun)
	if took := int64(now - l.clock); took > l.longest.Load() { // Tick may reset it meanwhile
		l.longest.Store(took)
	}
	l.clock = now
}

const (
	atOnce      = 128  // events, or letters, before the others get their turn
	keptLetters = 4096 // the largest mailbox that is kept when it is empty
)

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

// leave ends what join began. The caller closes the descriptor later.
func (l *loop) leave(c *conn) {
	l.conns[c.fd] = nil
	delete(l.delayed, c)
	l.remove(c.fd)
}

// each does something to every connection.
func (l *loop) each(do func(*conn)) {
	for _, c := range l.conns {
		if c != nil {
			do(c)
			c.proceed()
		}
	}
}

// tick answers with the delayed refusals that are due. With check it also ends connections
// that wait too long.
func (l *loop) tick(now time.Time, check bool) {
	for c, due := range l.delayed {
		if !now.Before(due) {
			c.answerRefusal()
			c.proceed()
		}
	}
	if !check {
		return
	}
	for _, c := range l.conns {
		if c != nil && c.due < c.lane.age.Load() {
			c.overdue()
			c.proceed()
		}
	}
}

// closeAll closes all connections, and those that join later.
func (l *loop) closeAll() {
	l.closing = true
	l.each((*conn).close)
}
