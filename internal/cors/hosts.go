package cors

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Hosts are the names under which clients may address one listener. They stop DNS
// rebinding: a page can make its own name resolve to the daemon's address. Then Origin and
// Host agree, and only the name in Host tells it from a page of the daemon's own.
//
// Three kinds of requests are always allowed, because such a page cannot send them: with
// an IP address or localhost as the name, and without a name (HTTP/1.0). All methods may be
// called concurrently.
type Hosts struct {
	isOpen   bool // an empty list allows every name; immutable
	refusals *refusals

	// InForce are the names until the next Reload, which stores others.
	InForce atomic.Pointer[Names]
}

// Names are the names under which clients may address a listener. They are immutable, so a verdict
// holds as long as InForce has the same pointer.
type Names struct {
	every  bool
	listed map[string]bool // "*.app.example" stands for one label before ".app.example"
}

// NewHosts returns Hosts with the names of a list; see Reload. isOpen says what an empty
// list means: every name, or none. log gets the names that are refused.
func NewHosts(list []string, isOpen bool, log *zap.Logger) *Hosts {
	h := &Hosts{isOpen: isOpen, refusals: newRefusals(log)}
	h.Reload(list)
	return h
}

// Reload puts other names in force: lower-case DNS names without a port, "*." and a name
// for all names with one label more, or Every alone.
func (h *Hosts) Reload(list []string) {
	n := &Names{every: h.isOpen && len(list) == 0, listed: make(map[string]bool, len(list))}
	for _, name := range list {
		n.every = n.every || name == Every
		n.listed[name] = true
	}
	h.InForce.Store(n)
}

// Allow reports whether a request with this Host is allowed, and logs it if not: each name
// once a minute, and at most maxRefused names in a minute.
func (h *Hosts) Allow(host string) bool {
	if h.InForce.Load().Allow(host) {
		return true
	}
	if name := nameOf(host); isLoggable(name) && h.refusals.isDue(name, time.Now()) {
		h.refusals.log.Warn("a request for an unknown host was refused: if clients use this name, add it to hosts", zap.String("host", name))
	}
	return false
}

// Allow reports whether a request with this Host is allowed.
func (n *Names) Allow(host string) bool {
	if n.every || host == "" {
		return true
	}
	name := nameOf(host)
	if name == "localhost" || n.listed[name] {
		return true
	}
	if dot := strings.IndexByte(name, '.'); dot > 0 && n.listed[Every+name[dot:]] {
		return true
	}
	_, err := netip.ParseAddr(name)
	return err == nil
}

// nameOf returns the name or address of a Host, without its port and the dot that may end
// it.
func nameOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// Bounds of the names that are logged.
const (
	maxNameBytes = 253 // RFC 1035, section 2.3.4

	// maxLabelBytes is less than the 63 that DNS allows: a secret of 128 bits has at least 22
	// characters, and the id of a session 27.
	maxLabelBytes = 20
)

// isLoggable reports whether a text is an IP address, or can be a DNS name. Any other text
// could be a secret that a client put into the wrong header, or could forge a line of the log.
func isLoggable(text string) bool {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Zone() == ""
	}
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > maxLabelBytes {
			return false
		}
	}
	return len(text) <= maxNameBytes && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}
