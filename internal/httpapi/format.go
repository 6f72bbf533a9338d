package httpapi

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// formats are those that a poll can ask for, by what format= calls them, with the
// ranges of Accept that take them, from the widest to the one that names it alone. Of
// those that a client likes equally the first counts.
var formats = []struct {
	name   string
	format frame.Format
	ranges []string
}{
	// curl --json and many libraries say application/json without being asked.
	{"json", frame.NDJSON, []string{"*/*", "application/*", "application/json", "application/x-ndjson"}},
	{"cbor", frame.CBOR, []string{"*/*", "application/*", "application/cbor-seq"}},
}

// formatOf returns the format that a request wants: format= beats Accept. There may be
// none.
func formatOf(q url.Values, accepts lane.Accepts) (frame.Format, error) {
	name, err := one(q, "format")
	if err != nil {
		return 0, err
	}
	for _, f := range formats {
		if name == f.name {
			return f.format, nil
		}
	}
	switch {
	case q.Has("format"):
		return 0, wire.NewProblem(wire.CodeNotAcceptable, "say format=json or format=cbor", "there is no format %.40q", name)
	case accepts.None:
		return 0, wire.NewProblem(wire.CodeNotAcceptable, "accept application/x-ndjson or application/cbor-seq, or say format=json or format=cbor", "no format that there is is accepted")
	}
	return accepts.Format, nil
}

// accepted reads an Accept header: of the formats the one counts whose weight is the
// highest, by the most specific range that takes it (RFC 9110, section 12.5.1).
func accepted(accept []string) lane.Accepts {
	if strings.Trim(strings.Join(accept, ","), ", \t") == "" {
		return lane.Accepts{}
	}
	weights := weightsOf(accept)
	best, likes := lane.Accepts{None: true}, 0.0
	for _, f := range formats {
		weight := 0.0
		for _, r := range f.ranges {
			if w, ok := weights[r]; ok {
				weight = w
			}
		}
		if weight > likes {
			best, likes = lane.Accepts{Format: f.format}, weight
		}
	}
	return best
}

// weightOf returns the weight among a range's parameters: 1 if there is none that can
// be read.
func weightOf(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		if q, ok := strings.CutPrefix(strings.TrimSpace(param), "q="); ok {
			if weight, err := strconv.ParseFloat(q, 64); err == nil {
				return weight
			}
		}
	}
	return 1
}
