// Package lane is the short way for polls and small publishes on plain HTTP/1.1.
//
// net/http parks a long poll with two goroutines, two buffers and a header map, and
// takes four times as long to answer it as the system calls do
// (loadtest/results/compare.md, baseline). So after the first poll or
// publish on a connection, which net/http and the router have read, the lane
// takes the connection over: no goroutine and no buffer while it waits, head and
// body in one write of bytes that all subscribers share. Loops (loop.go), one for
// every second core, serve what comes on all connections.
//
// It reads three forms of requests by a grammar of its own that is narrower than
// HTTP (grammar.go): what it accepts has one reading. Everything else goes back
// to net/http with all that was read, whole and once, so that nothing is ever
// parsed in two ways. What was read ahead is not looked at until the answer before
// it is complete. Who asks for what is looked up for each request: a proxy
// carries many clients' requests on one connection.
//
// Polls wait in one of two ways, "handoff" and "channel", of which session.Outlet
// tells. The lane needs Linux; elsewhere net/http serves everything.
package lane

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Conn is a connection that the lane can serve.
type Conn interface {
	net.Conn
	syscall.Conn
}

// Config is what a Lane stands on. All fields are required.
type Config struct {
	App     *app.App
	Polls   *transport.Server
	Metrics *metrics.Metrics
	Origins *cors.Policy

	// HandOff parks polls on their connections; else each parks in a goroutine on its
	// session's queue. session.Outlet tells of both.
	HandOff bool

	// WriteTimeout is how long a client may take to read what does not fit its
	// socket's buffer.
	WriteTimeout time.Duration

	// Idle is how long a connection may be silent between requests.
	Idle time.Duration
}

// A Lane serves the connections that it has taken over. All methods may be called concurrently. It needs Tick about each
// second, an http.Server that serves Listener, and Close at the end.
type Lane struct {
	app      *app.App
	polls    *transport.Server
	metrics  *metrics.Metrics
	origins  *cors.Policy
	handOff  bool
	patience [awaits]atomic.Int64 // in seconds
	begun    time.Time

	heads    atomic.Pointer[heads]
	fields   *fieldCache
	life     context.Context // done when it closes: of commands that wait
	endLife  context.CancelFunc
	back     *listener
	loops    []loop
	next     atomic.Uint32 // reader to join, but for the modulus
	looked   atomic.Int64  // age at which all connections were looked at last
	draining atomic.Bool
	drained  chan struct{}  // closed once, under mu
	running  sync.WaitGroup // connections, and goroutines that do something for one

	mu     sync.Mutex // guards the fields below, and opening loops
	conns  int        // connections
	closed bool
	once   sync.Once
}

// New returns a lane without connections.
func New(cfg Config) *Lane {
	l := &Lane{
		app: cfg.App, polls: cfg.Polls, metrics: cfg.Metrics, origins: cfg.Origins, handOff: cfg.HandOff,
		fields: newFieldCache(), back: newListener(cfg.Metrics), drained: make(chan struct{}),
		loops: make([]loop, max(1, runtime.GOMAXPROCS(0)/2)),
	}
	l.life, l.endLife = context.WithCancel(context.Background())
	l.begun = time.Now()
	for what := range l.patience {
		l.patience[what].Store(seconds(cfg.Idle))
	}
	l.patience[theRest].Store(seconds(restTimeout))
	l.Reload(cfg.WriteTimeout)
	l.Tick(l.begun)
	return l
}

// age is the lane's age at the last Tick, in seconds.
func (l *Lane) age() int64 { return l.heads.Load().age }

// Reload puts another write timeout in force, for what waits from now on.
func (l *Lane) Reload(writeTimeout time.Duration) { l.patience[space].Store(seconds(writeTimeout)) }

// seconds is d in whole seconds, at least one.
func seconds(d time.Duration) int64 { return max(1, int64(d/time.Second)) }

// Listener is where connections go back to net/http.
func (l *Lane) Listener() net.Listener { return l.back }

// Tick makes new heads for answers if the second has changed, and ends what takes
// too long.
func (l *Lane) Tick(now time.Time) {
	age := int64(now.Sub(l.begun) / time.Second)
	if h := l.heads.Load(); h == nil || h.second != now.Unix() || h.age != age {
		l.heads.Store(makeHeads(now, age, l.origins, h))
	}
	look := age >= l.looked.Load()+lookEvery
	if look {
		l.looked.Store(age)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tellLocked(func(loop *loop) { loop.tick(now, look) })
}

// lookEvery is how many seconds pass between two looks at all connections, and how
// late one may be ended that takes too long.
const lookEvery = 5

// restTimeout is how long the rest of a request may take before net/http gets what
// is there.
const restTimeout = 10 * time.Second

// TakePoll takes over the connection of a poll that net/http has read, and answers
// it; false if it cannot, and then nothing was touched. The session of a poll that
// has none of its own is the lane's to end then.
func (l *Lane) TakePoll(w http.ResponseWriter, r *http.Request, s *session.Session, req transport.Request) bool {
	c, gone := l.take(w, r)
	if c == nil {
		if gone {
			l.app.End(s)
		}
		return gone
	}
	if r.Method == http.MethodPost {
		c.requests.blanks = blanksBehindPost
	}
	c.begin(func(c *conn) { c.beginPoll(s, req) })
	return true
}

// TakePublish takes over the connection of a publish that net/http has read, and
// answers it; false if it cannot.
func (l *Lane) TakePublish(w http.ResponseWriter, r *http.Request, published wire.Published) bool {
	c, gone := l.take(w, r)
	if c == nil {
		return gone
	}
	c.requests.blanks = blanksBehindPost
	c.begin(func(c *conn) { c.writePublished(published) })
	return true
}

// take takes the connection of r away from net/http, or returns nil if it is not
// one for the lane, as one without listen.NewContext, or net/http has to end it; gone says that it is lost on the
// way. begin must follow.
func (l *Lane) take(w http.ResponseWriter, r *http.Request) (c *conn, gone bool) {
	unwrapped, strikes := unwrap(listen.FromContext(r.Context()))
	nc, ok := unwrapped.(Conn)
	if !ok || !supported || l.draining.Load() || r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.Close || r.Header["Expect"] != nil {
		return nil, false
	}
	if c = l.adopt(nc, l.origins.Index(r.Header.Get("Origin"))); c == nil {
		return nil, false
	}
	c.requests.strikes, c.who = strikes, c.counted.Who(r.Header["X-Forwarded-For"])
	_, buffered, err := http.NewResponseController(w).Hijack()
	_ = nc.Close() // the connection lives on in fd, or nobody can use it
	if err != nil {
		c.begin((*conn).close)
		return nil, true
	}
	ahead, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // at most what net/http reads at a time, half of a buffer
	c.begins(ahead)
	return c, false
}

// adopt makes a connection of the lane that is nc, or nil if that fails. begin must
// follow. nc is to be closed, but not before nobody else reads it.
func (l *Lane) adopt(nc Conn, origin int) *conn {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil
	}
	fd, err := duplicate(raw)
	if err != nil {
		return nil
	}
	c := l.newConn(fd, listen.Counted(nc).Share())
	c.origin = origin
	if !l.admit(c) {
		return nil
	}
	return c
}

// newConn returns a connection that nobody has yet.
func (l *Lane) newConn(fd int, counted *limit.Connection) *conn {
	c := &conn{counted: counted, who: counted.Who(nil)}
	c.owner = c
	c.lane, c.requests.parser.lane, c.fd, c.unread = l, l, fd, true
	c.answer.Init(l.polls, c, l.handOff)
	return c
}

// admit counts c and makes a place for it in a loop. If that fails it closes the
// descriptor.
func (l *Lane) admit(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.loop = &l.loops[int(l.next.Add(1))%len(l.loops)]
	if l.closed || c.loop.open() != nil || c.loop.reserve(c.fd) != nil {
		c.hangUp()
		return false
	}
	l.conns++
	l.metrics.LaneConnections.Inc()
	l.running.Add(1)
	return true
}

// begin gives the connection to its loop, which begins with do.
func (c *conn) begin(do func(*conn)) {
	c.loop.post(c, func(c *conn) {
		do(c)
		c.loop.join(c)
	})
}

// forget uncounts a connection.
func (l *Lane) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns--
	l.metrics.LaneConnections.Dec()
	l.running.Done()
	l.maybeDrainedLocked()
}

// maybeDrainedLocked says so once the lane drains and no connection is left.
func (l *Lane) maybeDrainedLocked() {
	if l.draining.Load() && l.conns == 0 {
		l.once.Do(func() { close(l.drained) })
	}
}

// Drain takes no connection over any more and closes those on which no poll waits;
// the others close after their answers. Drained is closed when none is left.
func (l *Lane) Drain() {
	l.draining.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tellLocked(func(loop *loop) { loop.each((*conn).takeBack) })
	l.maybeDrainedLocked()
}

// Drained is closed when the lane has drained.
func (l *Lane) Drained() <-chan struct{} { return l.drained }

// Close closes the connections that are left, and returns when no goroutine of the
// lane is.
func (l *Lane) Close() {
	l.mu.Lock()
	l.tellLocked((*loop).closeAll)
	l.closed = true
	l.mu.Unlock()
	l.endLife()
	_ = l.back.Close()
	l.running.Wait()
	for i := range l.loops {
		l.loops[i].shut()
	}
}

// tellLocked has the loops do something, unless the lane is closed.
func (l *Lane) tellLocked(do func(*loop)) {
	for i := range l.loops {
		if loop := &l.loops[i]; !l.closed && loop.isOpen() {
			loop.post(nil, func(*conn) { do(loop) })
		}
	}
}
