package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

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
