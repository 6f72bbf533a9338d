package config

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/internal/acme"
)

// address is a host:port to listen on; if it is optional, it may be empty.
func address(to *string, isOptional bool, allowed string) *field {
	return text(to, values[string]{
		kind: "host:port", allowed: "host:port, such as " + allowed,
		check: func(s string) error { return within(isOptional && s == "" || isAddress(s)) },
	})
}

// unixPrefix begins the address of a Unix socket, as listen.UnixPrefix does.
const unixPrefix = "unix:"

// maxSocketBytes bounds the path of a Unix socket. Linux takes 107 bytes, other systems less.
const maxSocketBytes = 100

// localAddress is the address of a listener that may also be a Unix socket. allowed and socket
// are examples: of host:port, and the name of a socket.
func localAddress(to *string, allowed, socket string) *field {
	return text(to, values[string]{
		kind:    "address",
		allowed: fmt.Sprintf("host:port, such as %s, or a Unix socket, such as unix:/run/pubsubd/%s, whose path is absolute and at most %d bytes long", allowed, socket, maxSocketBytes),
		check: func(s string) error {
			path, isSocket := strings.CutPrefix(s, unixPrefix)
			return within(isAddress(s) || isSocket && filepath.IsAbs(path) && len(path) <= maxSocketBytes && !strings.HasSuffix(path, "/"))
		},
	})
}

// isAddress reports whether s is host:port with a numeric port. The host may be empty (every
// interface), a name, or an IP address.
func isAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, " /@") {
		return false
	}
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return false
		}
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// isLoopback reports whether only this machine can reach the address. Of names it knows only
// localhost (RFC 6761, section 6.3): another name may resolve differently when the daemon
// listens.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isLocal reports whether only this machine can reach the address: over loopback or a Unix
// socket.
func isLocal(address string) bool {
	return isLoopback(address) || strings.HasPrefix(address, unixPrefix)
}

// maxOrigins bounds the origins. Every second, pubsubd makes headers of answers for each.
const maxOrigins = 100

// every stands for all origins, or for all names of hosts.
const every = "*"

// origins is a list of origins, or every alone.
func origins(to *[]string) *field {
	return texts(to, list[string]{
		kind: "origins", form: "origins, or *", most: maxOrigins,
		allowed: fmt.Sprintf("origins as browsers send them, such as https://app.example or http://localhost:3000 "+
			"(lower case, without a path, a slash at the end or the scheme's default port), at most %d, separated by commas; or %s alone for every origin", maxOrigins, every),
		check: func(origin string, alone bool) error {
			switch {
			case origin == every && !alone:
				return fmt.Errorf("%q must stand alone", every)
			case origin != every && !isOrigin(origin):
				return fmt.Errorf("%q is not an origin", origin)
			}
			return nil
		},
	})
}

// isOrigin reports whether a browser would send s as an origin (HTML standard, section
// "Serialization of an origin"). Any other text would never match. null is refused, because
// any page can send it.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	if err != nil {
		return false
	}
	host, port := u.Hostname(), u.Port()
	whole := u.Scheme + "://" + strings.TrimSuffix(net.JoinHostPort(host, port), ":")
	n, err := strconv.ParseUint(port, 10, 16)
	isPort := port == "" || err == nil && strconv.FormatUint(n, 10) == port
	isDefault := u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" // browsers omit it
	return s == strings.ToLower(whole) && isOriginHost(host) && isPort && !isDefault
}

func isOriginHost(host string) bool {
	if strings.Contains(host, ":") {
		ip, err := netip.ParseAddr(host)
		return err == nil && ip.String() == host
	}
	return host != "" && strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// maxHosts bounds the names of hosts.
const maxHosts = 100

// hosts is a list of DNS names and patterns of them, or every alone.
func hosts(to *[]string) *field {
	return texts(to, list[string]{
		kind: "names", form: "names, or *", most: maxHosts,
		allowed: fmt.Sprintf("DNS names such as app.example (lower case, without a scheme or a port), or *.app.example for all names with one label more, "+
			"at most %d, separated by commas; or %s alone for every name", maxHosts, every),
		check: func(name string, alone bool) error {
			switch {
			case name == every && !alone:
				return fmt.Errorf("%q must stand alone", every)
			case name != every && !isDNSName(strings.TrimPrefix(name, "*.")):
				return fmt.Errorf("%q is not a name", name)
			}
			return nil
		},
	})
}

// isDNSName reports whether s is a DNS name in lower case without a dot at the end (RFC 1035,
// section 2.3.4).
func isDNSName(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
	}
	return len(s) <= 253 && isOriginHost(s)
}

// AcceptsEveryHost reports whether clients may address the public listener, and operators
// the admin listener, under every name if Hosts is empty.
//
// Only a page of the web can be rebound to another address, and only a listener on loopback
// serves nobody but the users of one machine. There the names that a page can have are
// refused. A listener that other machines reach has names that the daemon cannot know. TLS
// needs no list: no authority signs another server's name for the daemon. If pages of every
// origin are allowed, rebinding gives a page nothing.
func (c Config) AcceptsEveryHost() (public, admin bool) {
	open := c.ServesTLS() || slices.Contains(c.Origins, every)
	return open || !isLocal(c.Listen.Public), !isLoopback(c.Listen.Admin)
}

// maxDomains bounds the certificates of ACME.
const maxDomains = 100

// domains is a list of DNS names. A pattern would need a challenge by DNS.
func domains(to *[]string) *field {
	return texts(to, list[string]{
		kind: "names", most: maxDomains,
		allowed: fmt.Sprintf("DNS names such as app.example (lower case, without a scheme, a port or *), at most %d, separated by commas", maxDomains),
		check:   func(name string, _ bool) error { return within(isDNSName(name)) },
	})
}

// directory is the URL of an ACME authority.
func directory(to *string) *field {
	return text(to, values[string]{
		kind: "url", form: "https url", allowed: "an https URL, such as " + acme.DefaultDirectory + ", without a user, a password or a fragment",
		check: func(s string) error {
			u, err := url.Parse(s)
			return within(err == nil && u.Scheme == "https" && u.Hostname() != "" && u.User == nil && u.Fragment == "")
		},
	})
}

// email is an address for mail, or nothing.
func email(to *string) *field {
	return text(to, values[string]{
		kind: "email", allowed: "an address such as ops@app.example, or nothing",
		check: func(s string) error {
			at, err := mail.ParseAddress(s)
			return within(s == "" || err == nil && at.Address == s)
		},
	})
}

// maxProxies bounds the proxies. pubsubd searches the list for each connection.
const maxProxies = 100

// proxies is a list of addresses and networks.
func proxies(to *[]netip.Prefix) *field {
	return list[netip.Prefix]{
		kind: "addresses", most: maxProxies,
		allowed: fmt.Sprintf("IP addresses or networks, such as 10.0.0.7, 10.1.0.0/16 or fd00::/8, without zones, at most %d, separated by commas", maxProxies),
		parse: func(text string) (netip.Prefix, error) { // a network, or an address as a network of one address
			if strings.ContainsAny(text, "/%") { // ParsePrefix refuses a zone
				return netip.ParsePrefix(text)
			}
			addr, err := netip.ParseAddr(text)
			return netip.PrefixFrom(addr, addr.BitLen()), err
		},
		format: func(p netip.Prefix) string {
			if p.IsSingleIP() {
				return p.Addr().String()
			}
			return p.String()
		},
		check: func(p netip.Prefix, _ bool) error {
			switch {
			case !p.IsValid():
				return errors.New("one is not an address")
			case p.Addr().Is4In6():
				return fmt.Errorf("write %s as IPv4, %s", p.Addr(), p.Addr().Unmap())
			case p.Bits() == 0:
				return fmt.Errorf("%s matches every address, so any client could forge its address: name the proxies or their network", p)
			case p != p.Masked():
				return fmt.Errorf("%s is neither an address (%s) nor a network (%s)", p, p.Addr(), p.Masked())
			}
			return nil
		},
	}.field(to)
}

// serverURL is the URL of a server that the daemon calls.
func serverURL(to *string, example string) *field {
	return text(to, values[string]{
		kind: "url", allowed: "an http or https URL, such as " + example + ", without a user, a password or a fragment, or nothing",
		check: checkServerURL,
	})
}

// checkServerURL refuses a URL with a password, because logs show the setting.
func checkServerURL(s string) error {
	u, err := url.Parse(s)
	return within(s == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && u.Fragment == "")
}
