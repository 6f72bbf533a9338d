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
