package client

import (
	"net/http"
	"strings"
)

// BrowserHeader returns the headers that a browser sends with a fetch from a page of
// the same origin, for clients that go through net/http, which writes Host and
// Connection by itself.
func BrowserHeader(authority string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(browserHeaders(authority), "\r\n") {
		if name, value, ok := strings.Cut(line, ": "); ok && name != "Host" && name != "Connection" {
			h[name] = []string{value} // as it is written: a browser's own case
		}
	}
	return h
}
