package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A proxy stands between clients and the daemon, and cuts, delays and narrows
// their connections by lot, at any byte and in both directions. The daemon's
// address may change: clients keep the proxy's.
//
// It is safe for concurrent use. Whoever made it must close it.
type proxy struct {
	listener net.Listener
	seed     uint64
	draw     func(*rand.Rand) fate
	upstream atomic.Pointer[string] // nil or empty: the daemon is away, and clients are refused
	calmed   chan struct{}          // closed by calm
	links    sync.WaitGroup         // of the goroutines
	count    [misfortunes]atomic.Int64
	accepted atomic.Int64

	mu    sync.Mutex // guards the fields below
	open  map[*link]struct{}
	ended bool
	still bool
}

// A link is one client's connection and the one to the daemon.
type link struct {
	proxy          *proxy
	client, server *net.TCPConn
	fate           fate // guarded by proxy.mu once linked
	rng            *rand.Rand
	cut            chan struct{} // closed when both are
	once           sync.Once
}

func newProxy(seed uint64, draw func(*rand.Rand) fate) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the proxy: %w", err)
	}
	p := &proxy{listener: listener, seed: seed, draw: draw, calmed: make(chan struct{}), open: map[*link]struct{}{}}
	p.links.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// lead sends connections that come from now on to address; empty is nowhere.
func (p *proxy) lead(address string) { p.upstream.Store(&address) }

// calm ends all misfortune: connections that it would befall, or that are narrow,
// are closed, and nothing happens to new ones.
func (p *proxy) calm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.still {
		return
	}
	p.still = true
	close(p.calmed)
	for l := range p.open {
		if l.fate.what != noMisfortune || l.fate.narrow {
			l.end(false)
		}
	}
}

// close ends every connection and waits for the goroutines.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.ended = true
	for l := range p.open {
		l.end(false)
	}
	p.mu.Unlock()
	p.links.Wait()
}

// cuts returns how many connections were cut.
func (p *proxy) cuts() (n int64) {
	for what := range misfortunes {
		if what.ends() {
			n += p.count[what].Load()
		}
	}
	return n
}

func (p *proxy) accept() {
	for n := uint64(1); ; n++ {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of files: the next may find one
			continue
		}
		p.accepted.Add(1)
		p.links.Go(func() { p.serve(conn.(*net.TCPConn), rand.New(rand.NewPCG(p.seed, n))) })
	}
}

func (p *proxy) serve(client *net.TCPConn, rng *rand.Rand) {
	server, err := p.dial()
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{proxy: p, client: client, server: server, rng: rng, cut: make(chan struct{})}
	if !p.add(l) {
		return
	}
	defer p.remove(l)
	if l.fate.narrow {
		narrow(client, server)
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(server, client, up) })
	both.Go(func() { l.pump(client, server, down) })
	both.Wait()
	l.end(false)
}

func (p *proxy) dial() (*net.TCPConn, error) {
	address := p.upstream.Load()
	if address == nil || *address == "" {
		return nil, errors.New("the daemon does not run")
	}
	conn, err := net.DialTimeout("tcp", *address, time.Second)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// add draws the link's fate and reports whether the proxy still runs.
func (p *proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		l.end(false)
		return false
	}
	if !p.still {
		l.fate = p.draw(l.rng)
	}
	p.open[l] = struct{}{}
	return true
}

func (p *proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, l)
}

const narrowBytes = 4 << 10

func narrow(conns ...*net.TCPConn) {
	for _, c := range conns {
		_ = c.SetReadBuffer(narrowBytes)
		_ = c.SetWriteBuffer(narrowBytes)
	}
}

// pump copies what goes one way, up to the byte where the fate strikes.
func (l *link) pump(to, from *net.TCPConn, toward direction) {
	buffer := make([]byte, 16<<10)
	for passed := int64(0); ; {
		n, err := from.Read(buffer)
		rest := buffer[:n]
		for len(rest) > 0 {
			part := rest
			f, mine := l.fateToward(toward)
			if left := f.after - passed; mine && left < int64(len(part)) {
				part = part[:max(left, 0)]
			}
			if _, err := to.Write(part); err != nil {
				l.end(false)
				return
			}
			passed += int64(len(part))
			if rest = rest[len(part):]; len(rest) > 0 && !l.strike(f, to, rest) {
				return
			} else if len(rest) > 0 && f.what == trickled {
				rest = nil // strike has passed it on
			}
		}
		if err != nil {
			l.finish(to, err)
			return
		}
	}
}

// fateToward returns the link's fate, and whether it is to strike this direction.
func (l *link) fateToward(toward direction) (fate, bool) {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	return l.fate, l.fate.what != noMisfortune && l.fate.toward == toward
}

// finish passes on that one side will send no more.
func (l *link) finish(to *net.TCPConn, err error) {
	if reset := (*net.OpError)(nil); errors.As(err, &reset) {
		l.end(true)
		return
	}
	_ = to.CloseWrite()
}

// strike lets the fate happen, before rest, and reports whether the connection goes
// on. What survives has no further fate.
func (l *link) strike(f fate, to *net.TCPConn, rest []byte) bool {
	l.proxy.count[f.what].Add(1)
	switch f.what {
	case closed:
		l.end(false)
	case reset:
		l.end(true)
	case halfClosed:
		_ = to.CloseWrite()
		l.wait(f.lasts)
		l.end(false)
	case stalled:
		l.wait(f.lasts)
		l.end(l.rng.IntN(2) == 0)
	case delayed:
		l.wait(f.lasts)
	case trickled:
		if !l.trickle(to, rest) {
			l.end(false)
			return false
		}
	}
	if f.what.ends() {
		return false
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.fate.what = noMisfortune
	return true
}

// trickle passes b on in small pieces.
func (l *link) trickle(to *net.TCPConn, b []byte) bool {
	for pieces := 0; len(b) > 0; pieces++ {
		n := min(len(b), 1+l.rng.IntN(40))
		if pieces >= 100 {
			n = len(b)
		}
		if _, err := to.Write(b[:n]); err != nil {
			return false
		}
		b = b[n:]
		l.wait(time.Duration(l.rng.IntN(10)) * time.Millisecond)
	}
	return true
}

// wait waits for d, or until the link is cut or all is calm.
func (l *link) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.cut:
	case <-l.proxy.calmed:
	}
}

// end closes both sides, by a reset if rudely.
func (l *link) end(rudely bool) {
	l.once.Do(func() {
		close(l.cut)
		for _, c := range []*net.TCPConn{l.client, l.server} {
			if rudely {
				_ = c.SetLinger(0)
			}
			_ = c.Close()
		}
	})
}
