package encoding

import (
	"sync/atomic"
	"time"
)

// A tally is what one client did so far. It is written by its goroutine, and read
// by another while that goes on.
type tally struct {
	trips, in, out, build, parse atomic.Int64

	_ [64]byte // no two clients' on one cache line
}

// add counts one trip; in and out are the bytes of all trips.
func (t *tally) add(build, parse time.Duration, in, out int64) {
	t.trips.Add(1)
	t.in.Store(in)
	t.out.Store(out)
	t.build.Add(int64(build))
	t.parse.Add(int64(parse))
}

// A Sum is what was done, by clients and server. CPU times are in seconds; the
// server's is 0 where it is not known, as are the clients' build and parse.
type Sum struct {
	Trips    int64   `json:"trips"`
	Seconds  float64 `json:"seconds"`
	BytesOut int64   `json:"bytes_out"` // that clients sent, with HTTP
	BytesIn  int64   `json:"bytes_in"`  // that came to them
	Server   float64 `json:"server_cpu_s"`
	Build    float64 `json:"build_cpu_s"`
	Parse    float64 `json:"parse_cpu_s"`
	Client   float64 `json:"client_cpu_s"` // all of it, build and parse too
}

// plus adds up; minus is what was done since.
func (s Sum) plus(o Sum) Sum { return s.combine(o, 1) }

func (s Sum) minus(o Sum) Sum { return s.combine(o, -1) }

func (s Sum) combine(o Sum, sign int64) Sum {
	f := float64(sign)
	return Sum{
		Trips: s.Trips + sign*o.Trips, Seconds: s.Seconds + f*o.Seconds,
		BytesOut: s.BytesOut + sign*o.BytesOut, BytesIn: s.BytesIn + sign*o.BytesIn,
		Server: s.Server + f*o.Server, Build: s.Build + f*o.Build, Parse: s.Parse + f*o.Parse, Client: s.Client + f*o.Client,
	}
}

// TripsPerSecond is the throughput.
func (s Sum) TripsPerSecond() float64 { return over(float64(s.Trips), s.Seconds) }

// Rest is the clients' CPU that is neither build nor parse: sockets, HTTP, checking,
// and the garbage collector of all of it.
func (s Sum) Rest() float64 { return max(s.Client-s.Build-s.Parse, 0) }

// MicrosPerTrip is a CPU time of the sum, a trip.
func (s Sum) MicrosPerTrip(cpu float64) float64 { return over(cpu*1e6, float64(s.Trips)) }

// InUse is the share of the machine's cores that clients and server used.
func (s Sum) InUse(cores int) float64 { return over(s.Server+s.Client, s.Seconds*float64(cores)) }

// over is a quotient, 0 where there is none.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
