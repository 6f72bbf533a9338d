package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// address is a host:port to listen on; if it is optional, it may be empty.
func address(to *string, isOptional bool, allowed string) *field {
	return text(to, values[string]{
		kind: "host:port", allowed: "host:port, such as " + allowed,
		check: func(s string) error { return within(isOptional && s == "" || isAddress(s)) },
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

// maxOrigins bounds the origins. Every second, pubsubd makes headers of answers for each.
const maxOrigins = 100

// everyOrigin stands for all origins.
const everyOrigin = "*"

// origins is a list of origins, or everyOrigin alone.
func origins(to *[]string) *field {
	return list[string]{
		kind: "origins", most: maxOrigins,
		allowed: fmt.Sprintf("origins as browsers send them, such as https://app.example or http://localhost:3000 "+
			"(lower case, without a path, a slash at the end or the scheme's default port), at most %d, separated by commas; or %s alone for every origin", maxOrigins, everyOrigin),
		parse: asIs, format: strings.Clone,
		check: func(origin string, alone bool) error {
			switch {
			case origin == everyOrigin && !alone:
				return fmt.Errorf("%q must stand alone", everyOrigin)
			case origin != everyOrigin && !isOrigin(origin):
				return fmt.Errorf("%q is not an origin", origin)
			}
			return nil
		},
	}.field(to)
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
	return s == strings.ToLower(whole) && isOriginHost(host) && (port == "" || isOriginPort(u.Scheme, port))
}

func isOriginHost(host string) bool {
	if strings.Contains(host, ":") {
		ip, err := netip.ParseAddr(host)
		return err == nil && ip.String() == host
	}
	return host != "" && strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// isOriginPort reports whether a browser would send this port. Browsers omit the scheme's
// default port.
func isOriginPort(scheme, port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && strconv.FormatUint(n, 10) == port && scheme+port != "http80" && scheme+port != "https443"
}

// maxProxies bounds the proxies. pubsubd searches the list for each connection.
const maxProxies = 100

// proxies is a list of addresses and networks.
func proxies(to *[]netip.Prefix) *field {
	return list[netip.Prefix]{
		kind: "addresses", most: maxProxies,
		allowed: fmt.Sprintf("IP addresses or networks, such as 10.0.0.7, 10.1.0.0/16 or fd00::/8, without zones, at most %d, separated by commas", maxProxies),
		parse:   parseNetwork, format: formatNetwork,
		check: func(p netip.Prefix, _ bool) error { return checkProxy(p) },
	}.field(to)
}

// parseNetwork reads a network, or an address as a network of one address.
func parseNetwork(text string) (netip.Prefix, error) {
	if strings.ContainsAny(text, "/%") { // ParsePrefix refuses a zone
		return netip.ParsePrefix(text)
	}
	addr, err := netip.ParseAddr(text)
	return netip.PrefixFrom(addr, addr.BitLen()), err
}

func formatNetwork(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func checkProxy(p netip.Prefix) error {
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
}

func hookURL(to *string) *field {
	return text(to, values[string]{
		kind: "url", allowed: "an http or https URL, such as http://127.0.0.1:9000/publish, without a user, a password or a fragment, or nothing",
		check: checkHookURL,
	})
}

// checkHookURL refuses a URL with a password, because logs show the setting.
func checkHookURL(s string) error {
	u, err := url.Parse(s)
	return within(s == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && u.Fragment == "")
}
