package transports

import "fmt"

// A Ratio compares two rows of one way.
type Ratio struct {
	Name  string  `json:"name"`
	Way   string  `json:"way"`
	Value float64 `json:"value"` // of the means
	// Rounds is the same of each repeat, in which both were measured one soon after the
	// other.
	Rounds Spread  `json:"rounds"`
	Theirs float64 `json:"theirs,omitempty"` // the article's; 0 if it has none
	Want   float64 `json:"want,omitempty"`   // at least; 0 if nothing is wanted
	Bound  bool    `json:"client_bound"`     // one of the two is the client's limit
}

// Met reports whether what is wanted is reached.
func (r *Ratio) Met() bool { return r.Value >= r.Want }

// A comparison is a Ratio yet to be made.
type comparison struct {
	name         string
	above, below subject // without their way
	theirs, want float64
	bytes        bool // received bytes, rather than messages a second
}

// comparisons are the article's three, and those with the floors.
var comparisons = []comparison{
	{name: "many ÷ one per poll, CBOR", above: subject{transport: Multiple, format: CBOR}, below: subject{transport: Single, format: CBOR}, theirs: 910},
	{name: "many ÷ one per poll, JSON", above: subject{transport: Multiple, format: JSON}, below: subject{transport: Single, format: JSON}},
	{name: "many per poll ÷ TCP, CBOR", above: subject{transport: Multiple, format: CBOR}, below: subject{transport: TCP, format: CBOR}, theirs: 0.88, want: 0.88},
	{name: "binary ÷ text, many per poll", above: subject{transport: Multiple, format: CBOR}, below: subject{transport: Multiple, format: JSON}, theirs: 1.38},
	{name: "binary ÷ text, bytes", above: subject{transport: Multiple, format: CBOR}, below: subject{transport: Multiple, format: JSON}, theirs: 0.5, bytes: true},
	{name: "TCP ÷ floor", above: subject{transport: TCP, format: CBOR}, below: subject{transport: BareWriter, format: CBOR}, want: 0.8},
	{name: "one per poll ÷ bare loop, JSON", above: subject{transport: Single, format: JSON}, below: subject{transport: BareLoop, format: JSON}, want: 0.85},
	{name: "one per poll ÷ bare loop, CBOR", above: subject{transport: Single, format: CBOR}, below: subject{transport: BareLoop, format: CBOR}, want: 0.85},
}

// ratios makes all that the rows allow.
func ratios(rows []Row) []Ratio {
	var all []Ratio
	for _, way := range Ways() {
		for _, c := range comparisons {
			if above, below := find(rows, c.above, way), find(rows, c.below, way); above != nil && below != nil {
				all = append(all, c.make(above, below))
			}
		}
	}
	return all
}

func find(rows []Row, s subject, way string) *Row {
	for i := range rows {
		if r := &rows[i]; r.Transport == s.transport && r.Format == s.format && r.Way == way && len(r.Samples) > 0 {
			return r
		}
	}
	return nil
}

func (c *comparison) make(above, below *Row) Ratio {
	r := Ratio{Name: c.name, Way: above.Way, Theirs: c.theirs, Want: c.want}
	if c.bytes {
		r.Value = above.BytesIn / below.BytesIn
		r.Rounds = spreadOf([]float64{r.Value})
		return r
	}
	r.Value = above.PerSecond.Mean / below.PerSecond.Mean
	r.Bound = above.ClientBound || below.ClientBound
	var rounds []float64
	for i := range min(len(above.Samples), len(below.Samples)) {
		rounds = append(rounds, above.Samples[i].PerSecond/below.Samples[i].PerSecond)
	}
	r.Rounds = spreadOf(rounds)
	return r
}

// accidents says what must not have happened.
func (r *Row) accidents() string {
	return fmt.Sprintf("%s, %s, %s: %d lost, %d duplicates, %d out of order, %d gaps",
		r.Transport, r.Format, r.Way, r.Lost, r.Duplicates, r.Disordered, r.Gaps)
}
