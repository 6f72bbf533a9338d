package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// isAddress reports whether s is host:port with a number for a port. The host
// may be empty (every interface), a name, or an IP address.
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

// isLoopback reports whether only this machine can reach the address. No name
// but localhost (RFC 6761, section 6.3) is looked up: what it stands for may
// change between the look and the listen.
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

// maxOrigins bounds a list of origins: the heads of answers are made for each of
// them every second.
const maxOrigins = 100

// everyOrigin stands for all of them.
const everyOrigin = "*"

// origins is a list of origins, or everyOrigin alone.
func origins(to *[]string) field {
	return fieldOf[[]string]{
		to: to, name: "origins", isList: true,
		may: fmt.Sprintf("origins as browsers send them, such as https://app.example or http://localhost:3000 "+
			"(lower case, without a path, a slash at the end or the scheme's own port), at most %d, separated by commas; or %s alone for every origin", maxOrigins, everyOrigin),
		parse:  splitList,
		format: func(list []string) string { return strings.Join(list, ",") },
		valid:  func(list []string) bool { return wrongOrigin(list) == "" },
		wrong:  wrongOrigin,
	}
}

func splitList(text string) ([]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	list := strings.Split(text, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list, nil
}

// wrongOrigin says what is wrong with a list of origins, or "".
func wrongOrigin(list []string) string {
	if len(list) > maxOrigins {
		return fmt.Sprintf("%d are too many", len(list))
	}
	for i, origin := range list {
		switch {
		case origin == everyOrigin && len(list) == 1:
		case origin == everyOrigin:
			return strconv.Quote(everyOrigin) + " must stand alone"
		case !isOrigin(origin):
			return strconv.Quote(origin) + " is no origin"
		case slices.Contains(list[:i], origin):
			return strconv.Quote(origin) + " is there twice"
		}
	}
	return ""
}

// isOrigin reports whether a browser would send s as an origin (HTML standard,
// section "Serialization of an origin"): what is written otherwise would never
// match. null is left out, since any page can make itself one.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	if err != nil {
		return false
	}
	host, port := u.Hostname(), u.Port()
	whole := u.Scheme + "://" + strings.TrimSuffix(net.JoinHostPort(host, port), ":")
	return s == strings.ToLower(whole) && isOriginHost(host) && (port == "" || isOriginPort(u.Scheme, port))
}

const originHostBytes = "abcdefghijklmnopqrstuvwxyz0123456789-_."

func isOriginHost(host string) bool {
	if strings.Contains(host, ":") {
		ip, err := netip.ParseAddr(host)
		return err == nil && ip.String() == host
	}
	return host != "" && strings.Trim(host, originHostBytes) == ""
}

// isOriginPort holds for a number that a browser would not leave out.
func isOriginPort(scheme, port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && strconv.FormatUint(n, 10) == port && scheme+port != "http80" && scheme+port != "https443"
}

// maxProxies bounds the list of proxies, which is looked through for each connection.
const maxProxies = 100

// proxies is a list of addresses and networks.
func proxies(to *[]netip.Prefix) field {
	return fieldOf[[]netip.Prefix]{
		to: to, name: "addresses", isList: true,
		may:    fmt.Sprintf("IP addresses or networks, such as 10.0.0.7, 10.1.0.0/16 or fd00::/8, without zones, at most %d, separated by commas", maxProxies),
		parse:  parsePrefixes,
		format: formatPrefixes,
		valid:  func(list []netip.Prefix) bool { return wrongProxy(list) == "" },
		wrong:  wrongProxy,
	}
}

func parsePrefixes(text string) ([]netip.Prefix, error) {
	texts, err := splitList(text)
	if err != nil || texts == nil {
		return nil, err
	}
	list := make([]netip.Prefix, len(texts))
	for i, one := range texts {
		if list[i], err = parsePrefix(one); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// parsePrefix reads a network, or an address, which is one by itself.
func parsePrefix(text string) (netip.Prefix, error) {
	if strings.ContainsAny(text, "/%") { // a zone is refused there
		return netip.ParsePrefix(text)
	}
	addr, err := netip.ParseAddr(text)
	return netip.PrefixFrom(addr, addr.BitLen()), err
}

func formatPrefixes(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
		if p.IsSingleIP() {
			texts[i] = p.Addr().String()
		}
	}
	return strings.Join(texts, ",")
}

// wrongProxy says what is wrong with a list of proxies, or "".
func wrongProxy(list []netip.Prefix) string {
	if len(list) > maxProxies {
		return fmt.Sprintf("%d are too many", len(list))
	}
	for i, p := range list {
		switch {
		case !p.IsValid():
			return "one is no address"
		case p.Addr().Is4In6():
			return fmt.Sprintf("%s is to be written as IPv4, %s", p.Addr(), p.Addr().Unmap())
		case p.Bits() == 0:
			return fmt.Sprintf("%s is everyone, so that any client could pass for another: name the proxies, or their network", p)
		case p != p.Masked():
			return fmt.Sprintf("%s is neither an address nor a network: the one is %s, the other %s", p, p.Addr(), p.Masked())
		case slices.Contains(list[:i], p):
			return formatPrefixes(list[i:i+1]) + " is there twice"
		}
	}
	return ""
}
