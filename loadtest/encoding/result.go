package encoding

import (
	"encoding/json"
	"math"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// A Result is what was measured, and what it means.
type Result struct {
	Started     time.Time            `json:"started"`
	Environment loadtest.Environment `json:"environment"`
	Parameters  Parameters           `json:"parameters"`
	Example     json.RawMessage      `json:"example"` // an object

	Rows    []*Row    `json:"rows"`              // by size, then encoding
	Missing []Missing `json:"missing,omitempty"` // what the server does not offer
	Ratios  []Ratio   `json:"ratios"`            // to text
	Shapes  []Shape   `json:"shapes"`            // the size table

	Findings []string `json:"findings"` // what it means, in words made of the figures
	Faults   []string `json:"faults,omitempty"`
	Error    string   `json:"error,omitempty"` // why it ended before its time
	ExitCode int      `json:"exit_code"`
}

// Parameters are what the test was told.
type Parameters struct {
	Target        string  `json:"target"`
	StartedServer bool    `json:"started_server"`
	Build         string  `json:"build,omitempty"` // of a started server
	ServerCPU     bool    `json:"server_cpu"`      // it is known
	Clients       int     `json:"clients"`
	DurationMS    float64 `json:"duration_ms"`
	WarmupMS      float64 `json:"warmup_ms"`
	Rounds        int     `json:"rounds"`
	Objects       []int   `json:"objects"`
	Seed          uint64  `json:"seed"`
}

// A Row is one encoding at one size.
type Row struct {
	Objects  int     `json:"objects"`
	Encoding string  `json:"encoding"`
	Rounds   []Sum   `json:"rounds"`
	All      Sum     `json:"all"`
	TripsS   Spread  `json:"trips_per_s"`
	ObjectsS float64 `json:"objects_per_s"`
}

// A Spread is a mean, and how far the rounds are from it.
type Spread struct {
	Mean  float64 `json:"mean"`
	Stdev float64 `json:"stdev"` // of single rounds; 0 of one
}

// Missing is an encoding that the server does not offer.
type Missing struct {
	Encoding string `json:"encoding"`
	Reason   string `json:"reason"`
}

// A Ratio compares an encoding with text at one size: above 1 it is the better.
type Ratio struct {
	Objects    int     `json:"objects"`
	Encoding   string  `json:"encoding"`
	Throughput Spread  `json:"throughput"`       // of each round's round trips a second
	AllCPU     float64 `json:"all_cpu"`          // text's a trip, over this one's; 0: the server's is not known
	ServerCPU  float64 `json:"server_cpu"`       // the same of the server's
	ClientCPU  float64 `json:"client_cpu"`       // and of the clients'
	Theirs     float64 `json:"theirs,omitempty"` // of the throughput of a server saturated alone
}

// theirs are the article's, of binary.
var theirs = map[int]float64{20: 1.24, 100: 1.71}

func newResult(cfg *Config, s *server) *Result {
	_, known := loadtest.ProcessCPU(s.pid)
	example, err := json.Marshal(newObjects(newRandom(cfg.Seed, 0), 1)[0])
	if err != nil {
		panic("BUG: an object does not marshal: " + err.Error())
	}
	return &Result{
		Started: time.Now(), Environment: loadtest.Here(), Example: example,
		Parameters: Parameters{
			Target: s.target, StartedServer: s.child != nil, Build: cfg.Build, ServerCPU: known, Clients: cfg.Clients,
			DurationMS: float64(cfg.Duration) / 1e6, WarmupMS: float64(warmup(cfg.Duration)) / 1e6,
			Rounds: cfg.Rounds, Objects: cfg.Objects, Seed: cfg.Seed,
		},
	}
}

// row returns the row of an encoding and size, a new one if there is none.
func (r *Result) row(objects int, encoding string) *Row {
	if found := r.Row(objects, encoding); found != nil {
		return found
	}
	made := &Row{Objects: objects, Encoding: encoding}
	r.Rows = append(r.Rows, made)
	return made
}

// Row returns the row of an encoding and size, nil if it was not measured.
func (r *Result) Row(objects int, encoding string) *Row {
	for _, row := range r.Rows {
		if row.Objects == objects && row.Encoding == encoding {
			return row
		}
	}
	return nil
}

func (w *Row) add(s Sum) {
	w.Rounds = append(w.Rounds, s)
	w.All = w.All.plus(s)
	var rates []float64
	for _, round := range w.Rounds {
		rates = append(rates, round.TripsPerSecond())
	}
	w.TripsS = spreadOf(rates)
	w.ObjectsS = w.TripsS.Mean * float64(w.Objects)
}

func spreadOf(all []float64) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	var s Spread
	for _, v := range all {
		s.Mean += v / float64(len(all))
	}
	if len(all) == 1 {
		return s
	}
	for _, v := range all {
		s.Stdev += (v - s.Mean) * (v - s.Mean) / float64(len(all)-1)
	}
	s.Stdev = math.Sqrt(s.Stdev)
	return s
}

// conclude draws from what was measured all that it means. err is why the test ended
// before its time, if it did.
func (r *Result) conclude(err error) {
	for _, row := range r.Rows {
		if text := r.Row(row.Objects, JSON); text != nil && row.Encoding != JSON {
			r.Ratios = append(r.Ratios, compare(text, row))
		}
	}
	r.Findings = findings(r)
	switch {
	case err != nil:
		r.Error, r.ExitCode = err.Error(), loadtest.ExitFailed
	case len(r.Faults) > 0:
		r.ExitCode = loadtest.ExitMissed
	}
}

// compare holds an encoding against text, round by round: what a round's neighbours
// on the machine did to one they did to both.
func compare(text, other *Row) Ratio {
	var each []float64
	for i := range min(len(text.Rounds), len(other.Rounds)) {
		each = append(each, over(other.Rounds[i].TripsPerSecond(), text.Rounds[i].TripsPerSecond()))
	}
	cpu := func(which func(Sum) float64) float64 {
		return over(text.All.MicrosPerTrip(which(text.All)), other.All.MicrosPerTrip(which(other.All)))
	}
	ratio := Ratio{
		Objects: other.Objects, Encoding: other.Encoding, Throughput: spreadOf(each),
		ServerCPU: cpu(func(s Sum) float64 { return s.Server }),
		ClientCPU: cpu(func(s Sum) float64 { return s.Client }),
	}
	if ratio.ServerCPU > 0 {
		ratio.AllCPU = cpu(func(s Sum) float64 { return s.Server + s.Client })
	}
	if other.Encoding == CBOR {
		ratio.Theirs = theirs[other.Objects]
	}
	return ratio
}
