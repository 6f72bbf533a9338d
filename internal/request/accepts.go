package request

import (
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/internal/frame"
)

// Accepts is what a client accepts as the answer.
type Accepts struct {
	Format frame.Format // the best of those that are acceptable
	None   bool         // none is acceptable
	Gzip   bool         // the answer may be in gzip
}

// formats are the formats of polls: the name in format=, and the ranges of Accept that
// include the format, the widest first. Of two formats with the same weight the first wins.
var formats = []struct {
	name   string
	format frame.Format
	ranges []string
}{
	// curl --json and many libraries send Accept: application/json by default.
	{"json", frame.NDJSON, []string{"*/*", "application/*", "application/json", "application/x-ndjson"}},
	{"cbor", frame.CBOR, []string{"*/*", "application/*", "application/cbor-seq"}},
}

// AcceptsOf reads the values of Accept and of Accept-Encoding. The format with the highest
// weight wins, and the most specific range that includes a format decides its weight
// (RFC 9110, section 12.5.1).
func AcceptsOf(accept, encoding []string) Accepts {
	best, highest := Accepts{Gzip: acceptsGzip(encoding)}, 0.0
	if strings.Trim(strings.Join(accept, ","), ", \t") == "" {
		return best
	}
	best.None = true
	weights := weightsOf(accept)
	for _, f := range formats {
		weight := 0.0
		for _, r := range f.ranges {
			if w, ok := weights[r]; ok {
				weight = w
			}
		}
		if weight > highest {
			best.Format, best.None, highest = f.format, false, weight
		}
	}
	return best
}

// acceptsGzip reads an Accept-Encoding header: whether gzip is acceptable, and not less
// than no encoding (RFC 9110, section 12.5.3). A client without the header accepts
// anything, but may not expect it.
func acceptsGzip(encodings []string) bool {
	weights := weightsOf(encodings)
	weight := func(names ...string) float64 {
		for _, name := range append(names, "*") {
			if w, ok := weights[name]; ok {
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
		weight := 1.0 // if none can be read
		for param := range strings.SplitSeq(params, ";") {
			q, isWeight := strings.CutPrefix(strings.TrimSpace(param), "q=")
			if w, err := strconv.ParseFloat(q, 64); isWeight && err == nil {
				weight = w
				break
			}
		}
		weights[strings.TrimSpace(name)] = weight
	}
	return weights
}
