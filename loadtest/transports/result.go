package transports

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// A Result is what a measurement found. Members of its JSON are added, never
// changed.
type Result struct {
	Scenario    string               `json:"scenario"` // transports
	Started     time.Time            `json:"started"`
	TookS       float64              `json:"took_s"`
	Environment loadtest.Environment `json:"environment"`
	Parameters  Parameters           `json:"parameters"`
	Payload     PayloadBytes         `json:"payload_bytes"`
	Rows        []Row                `json:"rows"`

	// PublishPerSecond is how many messages a second were taken when nobody subscribed:
	// no live transport is quicker. 0: nothing was filled.
	PublishPerSecond float64 `json:"publish_messages_per_s"`

	Ratios   []Ratio  `json:"ratios"`
	Failed   []string `json:"failed"` // why the figures do not count
	Missed   []string `json:"missed"` // what was lost, doubled or out of order
	ExitCode int      `json:"exit_code"`
}

// Parameters are what was asked for.
type Parameters struct {
	Target         string   `json:"target"`
	StartedServer  bool     `json:"started_server"`
	ServerFlags    []string `json:"server_flags"`
	Clients        int      `json:"clients"`
	Messages       int      `json:"messages"`
	SingleMessages int      `json:"single_messages"`
	Repeats        int      `json:"repeats"`
}

// PayloadBytes are those of the message without anything around it, and of its
// strings without quotes, heads and commas.
type PayloadBytes struct {
	Text int `json:"text"`
	JSON int `json:"json"`
	CBOR int `json:"cbor"`
}

// A Row is one subject over all repeats.
type Row struct {
	Transport string `json:"transport"`
	Format    string `json:"format"`
	Way       string `json:"way"`
	Floor     bool   `json:"floor"`

	Messages  int     `json:"messages"` // of all clients, in one repeat
	PerSecond Spread  `json:"messages_per_s"`
	BytesIn   float64 `json:"bytes_in_per_message"`  // that the clients received, heads and framing included
	BytesOut  float64 `json:"bytes_out_per_message"` // that they sent

	ServerUS    Spread `json:"server_cpu_us_per_message"` // zero if it is not known
	ClientUS    Spread `json:"client_cpu_us_per_message"`
	PublisherUS Spread `json:"publisher_cpu_us_per_message"` // in this process

	// ClientBusy is the clients' CPU time over what they could have had: the time that
	// it took on as many cores as they can use.
	ClientBusy  float64 `json:"client_busy"`
	ClientBound bool    `json:"client_bound"`

	Lost       int64 `json:"lost"`
	Duplicates int64 `json:"duplicates"`
	Disordered int64 `json:"disordered"`
	Gaps       int64 `json:"gaps"`

	Samples []Sample `json:"samples"` // in order; the first, which does not count, left out
}

// A Sample is one measurement.
type Sample struct {
	TookS      float64 `json:"took_s"`
	PerSecond  float64 `json:"messages_per_s"`
	ServerS    float64 `json:"server_cpu_s"`
	ClientS    float64 `json:"client_cpu_s"`
	PublisherS float64 `json:"publisher_cpu_s"`
	BytesIn    int64   `json:"bytes_in"`
	BytesOut   int64   `json:"bytes_out"`

	lost, duplicates, disordered, gaps int64
}

// accidents is how much happened that must not.
func (s *Sample) accidents() int64 { return s.lost + s.duplicates + s.disordered + s.gaps }

// A Spread is a figure over repeats.
type Spread struct {
	Mean  float64 `json:"mean"`
	Stdev float64 `json:"stdev"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
}

func spreadOf(all []float64) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	s := Spread{Min: math.Inf(1), Max: math.Inf(-1)}
	for _, v := range all {
		s.Mean += v / float64(len(all))
		s.Min, s.Max = min(s.Min, v), max(s.Max, v)
	}
	for _, v := range all {
		s.Stdev += (v - s.Mean) * (v - s.Mean)
	}
	s.Stdev = math.Sqrt(s.Stdev / float64(max(len(all)-1, 1)))
	return s
}

// busyThreshold is above which share of its time a client is what limits.
const busyThreshold = 0.9

// newRow gathers the samples of a subject.
func newRow(s subject, messages, clients int, samples []Sample) Row {
	all := float64(messages) * float64(clients)
	each := func(of func(Sample) float64) Spread {
		values := make([]float64, len(samples))
		for i := range samples {
			values[i] = of(samples[i])
		}
		return spreadOf(values)
	}
	cores := float64(min(clients, loadtest.Here().GOMAXPROCS))
	r := Row{
		Transport: s.transport, Format: s.format, Way: s.way, Floor: s.isFloor(),
		Messages: messages * clients, Samples: samples,
		PerSecond:   each(func(s Sample) float64 { return s.PerSecond }),
		BytesIn:     each(func(s Sample) float64 { return float64(s.BytesIn) / all }).Mean,
		BytesOut:    each(func(s Sample) float64 { return float64(s.BytesOut) / all }).Mean,
		ServerUS:    each(func(s Sample) float64 { return s.ServerS * 1e6 / all }),
		ClientUS:    each(func(s Sample) float64 { return s.ClientS * 1e6 / all }),
		PublisherUS: each(func(s Sample) float64 { return s.PublisherS * 1e6 / all }),
		ClientBusy:  each(func(s Sample) float64 { return s.ClientS / (s.TookS * cores) }).Mean,
	}
	for _, s := range samples {
		r.Lost += s.lost
		r.Duplicates += s.duplicates
		r.Disordered += s.disordered
		r.Gaps += s.gaps
	}
	r.ClientBound = r.ClientBusy > busyThreshold
	return r
}

// note keeps why a subject was given up, unless its sample says it.
func (r *Result) note(s subject, err error, sample *Sample) {
	if !errors.Is(err, errLost) {
		*sample = Sample{}
		r.Failed = append(r.Failed, fmt.Sprintf("%v: %v", s, err))
	}
}

// judge says what became of it all.
func (r *Result) judge() {
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Lost+row.Duplicates+row.Disordered+row.Gaps > 0 {
			r.Missed = append(r.Missed, row.accidents())
		}
	}
	switch {
	case len(r.Failed) > 0:
		r.ExitCode = loadtest.ExitFailed
	case len(r.Missed) > 0:
		r.ExitCode = loadtest.ExitMissed
	}
}
