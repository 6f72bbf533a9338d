package soak

import "github.com/pubsubd/pubsubd/loadtest/child"

// ports are what clients reach the daemon through: a proxy for each of its own.
type ports struct {
	http *proxy
	bare *proxy // connections without HTTP, to listen.tcp
}

// newPorts returns proxies that must be closed.
func newPorts(seed uint64) (*ports, error) {
	http, err := newProxy(seed, drawFate)
	if err != nil {
		return nil, err
	}
	bare, err := newProxy(^seed, drawFate) // a seed of its own: other fates
	if err != nil {
		http.close()
		return nil, err
	}
	return &ports{http, bare}, nil
}

// lead sends connections that come from now on to a daemon; without addresses, nowhere.
func (p *ports) lead(to child.Addresses) {
	p.http.lead(to.Public)
	p.bare.lead(to.TCP)
}

func (p *ports) calm() {
	p.http.calm()
	p.bare.calm()
}

func (p *ports) close() {
	p.http.close()
	p.bare.close()
}

// cuts returns how many connections were cut.
func (p *ports) cuts() int64 { return p.http.cuts() + p.bare.cuts() }

// befell returns how many connections something happened to.
func (p *ports) befell(what misfortune) int64 {
	return p.http.count[what].Load() + p.bare.count[what].Load()
}
