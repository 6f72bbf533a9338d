// Package lane serves long polls, small publishes and two-way connections without
// net/http.
//
// net/http parks a long poll with two goroutines, two buffers and a header map, and needs
// four times as long for an answer as the system calls take (loadtest/results/compare.md,
// baseline). So net/http reads only the first poll or publish on a connection. Then the
// lane takes the connection over. A waiting connection has no goroutine and no buffer. One
// write sends head and body, from bytes that all subscribers share. Event loops (loop.go),
// one for every second core, serve all connections.
//
// The lane reads three forms of requests. Its grammar is narrower than HTTP (grammar.go),
// so whatever it accepts has only one meaning. It hands every other request back to
// net/http with all bytes that it has read, so that nothing is parsed in two ways. It skips line
// ends before a request, and refuses a head that net/http's parser cannot read, because net/http
// would answer both with a 400 without a problem. It does not parse a request before the last
// answer is complete. It authorises each request by itself, because a proxy sends requests of many
// clients on one connection.
//
// Polls wait in one of two ways, "handoff" and "channel"; see session.Outlet. The lane
// needs Linux. On other systems net/http serves everything.
package lane

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Config configures a Lane. All fields but AccessLog are required.
type Config struct {
	App     *app.App
	Polls   *transport.Server
	Limiter *limit.Limiter
	Metrics *metrics.Metrics
	Origins *cors.Policy
	Hosts   *cors.Hosts

	AccessLog *observe.AccessLog

	Way Way
}

// Way is how polls wait; see session.Outlet.
type Way string

// The ways.
const (
	Off     Way = "off"     // or empty: net/http serves requests, two goroutines each two-way connection
	Channel Way = "channel" // each poll parks a goroutine on its session's queue
	HandOff Way = "handoff" // polls park on their connections
)

// Idle is how long a connection may be silent between requests, as with net/http.
const Idle = 2 * time.Minute

// A Lane serves the connections that it has taken over. It implements transport.Host. All
// methods may be called concurrently. It needs a call of Tick about each second, an
// http.Server that serves Listener, and Close at the end.
type Lane struct {
	cfg     Config // immutable, like the next six
	begun   time.Time
	fields  *fieldCache
	back    *listener
	loops   []loop
	life    context.Context // of commands that wait; done when the lane closes
	endLife context.CancelFunc

	heads    atomic.Pointer[heads]
	age      atomic.Int64  // of the lane at the last Tick, in seconds
	joined   atomic.Uint32 // connections until now
	draining atomic.Bool   // set under mu

	mu      sync.Mutex     // guards the fields below but running, and opening loops
	closed  bool           // no connection may join
	minute  int64          // of the lane's age
	longest time.Duration  // longest turn of any loop in it
	before  time.Duration  // the same in the minute before
	running sync.WaitGroup // connections and their goroutines; a new connection counts under mu
}

// New returns a lane without connections.
func New(cfg Config) *Lane {
	l := &Lane{
		cfg: cfg, begun: time.Now(), fields: newFieldCache(),
		back:  &listener{conns: make(chan net.Conn), done: make(chan struct{})},
		loops: make([]loop, max(1, runtime.GOMAXPROCS(0)/2)),
	}
	for i := range l.loops {
		l.loops[i].delayed, l.loops[i].begun = make(map[*conn]time.Time), l.begun
	}
	l.life, l.endLife = context.WithCancel(context.Background())
	l.Tick(l.begun)
	return l
}

// Listener returns the listener of connections that the lane hands back. The http.Server
// must serve it too, with listen.NewContext as its ConnContext.
func (l *Lane) Listener() net.Listener { return l.back }

// Tick makes new heads of answers when the second has changed, answers with delayed
// refusals, and ends connections that wait too long.
func (l *Lane) Tick(now time.Time) {
	if h := l.heads.Load(); h == nil || h.second != now.Unix() {
		l.heads.Store(makeHeads(now, l.cfg.Origins))
	}
	age := int64(now.Sub(l.begun) / time.Second)
	check := age/checkEvery != l.age.Swap(age)/checkEvery
	l.mu.Lock()
	defer l.mu.Unlock()
	if minute := age / 60; minute != l.minute {
		l.minute, l.before, l.longest = minute, l.longest, 0
	}
	for i := range l.loops {
		l.longest = max(l.longest, time.Duration(l.loops[i].longest.Swap(0)))
	}
	l.cfg.Metrics.LaneLongestTurn.Set(max(l.longest, l.before).Seconds()) // of this minute and the one before
	l.postAllLocked(func(loop *loop) { loop.tick(now, check) })
}

// checkEvery is how many seconds pass between two checks of all connections. A connection
// that waits too long ends so much late at most.
const checkEvery = 5

// restTimeout is how long the rest of a request may take to arrive before the lane hands
// its connection back.
const restTimeout = 10 * time.Second

// TakePoll takes over the connection of a poll that net/http has read, and answers the
// poll. It returns false if it cannot; then it has changed nothing. If it returns true,
// the lane ends the session of a stateless poll, and the entry of the access log.
func (l *Lane) TakePoll(w http.ResponseWriter, r *http.Request, s *session.Session, req transport.Request, entry *observe.Entry) bool {
	return l.take(w, r, entry, func(c *conn) { c.beginPoll(s, req) })
}

// TakePublish takes over the connection of a publish that net/http has read, and answers
// the publish. It returns false if it cannot; then it has changed nothing. If it returns true,
// the lane ends the entry of the access log.
func (l *Lane) TakePublish(w http.ResponseWriter, r *http.Request, published wire.Published, entry *observe.Entry) bool {
	return l.take(w, r, entry, func(c *conn) { c.answerPublish(published, nil) })
}

// take takes the connection of r away from net/http and begins with do. It returns false
// if the lane cannot serve the connection, or net/http has to close it after the answer.
func (l *Lane) take(w http.ResponseWriter, r *http.Request, entry *observe.Entry, do func(*conn)) bool {
	nc := movable(listen.FromContext(r.Context()))
	if nc == nil || r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.Close || r.Header["Expect"] != nil {
		return false
	}
	c := l.adopt(nc)
	if c == nil {
		return false
	}
	c.origin, c.requestID, c.entry = l.cfg.Origins.Index(r.Header.Get("Origin")), w.Header().Get("X-Request-Id"), entry
	if entry != nil {
		entry.Way = "lane"
	}
	c.requests.strikes, c.who = nc.Strikes, c.counted.Who(r.Header["X-Forwarded-For"])
	_, buffered, err := http.NewResponseController(w).Hijack()
	_ = nc.Close() // c.fd keeps the connection open
	c.failed = err != nil
	if !c.failed {
		ahead, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // fits: net/http reads half of a buffer at a time
		c.prefill(ahead)
	}
	c.begin(do)
	return true
}

// adopt makes nc a connection of the lane, or returns nil. begin must follow. The caller
// closes nc as soon as nobody else reads it.
func (l *Lane) adopt(nc *listen.Conn) *conn {
	if l.cfg.Way == Off || l.cfg.Way == "" || l.draining.Load() {
		return nil
	}
	fd, err := duplicate(nc)
	if err != nil {
		return nil
	}
	c := l.newConn(fd, listen.Counted(nc).Share())
	l.mu.Lock()
	defer l.mu.Unlock()
	c.loop = &l.loops[int(l.joined.Add(1))%len(l.loops)]
	if l.closed || l.draining.Load() || c.loop.open() != nil || c.loop.reserve(c.fd) != nil {
		closeFD(fd)
		c.counted.Leave()
		return nil
	}
	l.cfg.Metrics.LaneConnections.Inc()
	c.count(connBytes)
	l.running.Add(1)
	return c
}

// newConn returns a connection that belongs to no loop yet.
func (l *Lane) newConn(fd int, counted *limit.Connection) *conn {
	c := &conn{counted: counted, who: counted.Who(nil)}
	c.owner = c
	c.lane, c.requests.parser.lane, c.requests.blanks, c.fd, c.unread = l, l, blanksBefore, fd, true
	c.answer.Init(l.cfg.Polls, c, l.cfg.Way == HandOff)
	return c
}

// begin gives the connection to its loop, which begins with do.
func (c *conn) begin(do func(*conn)) {
	c.loop.post(c, func(c *conn) {
		do(c)
		c.loop.join(c)
	})
}

// Drain stops taking connections over. It closes connections without a parked poll at
// once, and the others after their answers. Two-way connections end with their sessions.
// The channel is closed when the lane has no connection and no goroutine for one. Drain
// also ends the delay of refusals: net/http does not notice that a connection was closed
// while its request waits with an unread body.
func (l *Lane) Drain() <-chan struct{} {
	l.cfg.Limiter.Release()
	twoWay := l.cfg.Polls.Drain()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining.Store(true)
	l.postAllLocked(func(loop *loop) { loop.each((*conn).takeBack) })
	drained := make(chan struct{})
	go func() {
		<-twoWay
		l.running.Wait()
		close(drained)
	}()
	return drained
}

// Close closes the connections that are left, and waits for all goroutines of the lane.
func (l *Lane) Close() {
	l.cfg.Polls.Close()
	l.mu.Lock()
	l.postAllLocked((*loop).closeAll)
	l.closed = true
	l.mu.Unlock()
	l.endLife()
	_ = l.back.Close()
	l.running.Wait()
	for i := range l.loops {
		l.loops[i].shut()
	}
}

// postAllLocked has each open loop do something, unless the lane is closed.
func (l *Lane) postAllLocked(do func(*loop)) {
	for i := range l.loops {
		if loop := &l.loops[i]; !l.closed && loop.isOpen() {
			loop.post(nil, func(*conn) { do(loop) })
		}
	}
}
