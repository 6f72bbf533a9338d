package httpapi

import (
	"net/http"
	"strings"

	"github.com/pubsubd/pubsubd/internal/lane"
)

// acceptsOf reads what a request's headers say of the answer.
func acceptsOf(h http.Header) lane.Accepts {
	accepts := accepted(h["Accept"])
	accepts.Gzip = acceptsGzip(h["Accept-Encoding"])
	return accepts
}

// acceptsGzip reads an Accept-Encoding header: whether an answer may be in gzip, and
// the client does not like it better as it is (RFC 9110, section 12.5.3). Who says
// nothing takes anything, but may not expect it.
func acceptsGzip(encodings []string) bool {
	weights := weightsOf(encodings)
	weight := func(names ...string) float64 {
		for _, name := range append(names, "*") {
			if w, said := weights[name]; said {
				return w
			}
		}
		return 0
	}
	gzip := weight("gzip", "x-gzip")
	return gzip > 0 && gzip >= weight("identity")
}

// weightsOf reads a header that is a list of names with weights.
func weightsOf(header []string) map[string]float64 {
	weights := make(map[string]float64)
	for part := range strings.SplitSeq(strings.ToLower(strings.Join(header, ",")), ",") {
		name, params, _ := strings.Cut(part, ";")
		weights[strings.TrimSpace(name)] = weightOf(params)
	}
	return weights
}
