package main

import (
	"cmp"
	"math"
	"slices"
)

// figures are one server's in one scenario, over its rounds. Those that were not
// measured are NaN.
type figures struct {
	runs, failed, bound int // of all runs, how many failed, and how many the generator bounded

	cpu         spread // microseconds for each delivery
	cpuMessage  spread // microseconds for each published message
	bursts      []float64
	late        int // bursts, those that never ended among them
	duplicates  int64
	disordered  int64
	median, p99 float64
	lost        int64
	expected    int64
	resident    float64 // bytes for each client
	busy        float64 // share of the generator's thread: in bursts, if there are any
	steal       float64 // the worst
	firstError  string
}

// A spread is a figure over rounds.
type spread struct{ median, least float64 }

// figuresOf looks at one server's measurements in one scenario.
func (c Comparison) figuresOf(scenario, server string) figures {
	var good []Measurement
	var f figures
	for _, m := range c.Measurements {
		if m.Scenario != scenario || m.Server != server {
			continue
		}
		f.runs++
		if m.failed() {
			f.failed++
			f.firstError = cmp.Or(f.firstError, m.Error)
			continue
		}
		good = append(good, m)
	}
	f.count(good)
	f.take(good)
	return f
}

// count adds up what adds up.
func (f *figures) count(good []Measurement) {
	for _, m := range good {
		f.lost += m.Result.Deliveries.Lost
		f.expected += m.Result.Deliveries.Expected
		f.duplicates += m.Result.Deliveries.Duplicates
		f.disordered += m.Result.Deliveries.Disordered
		f.steal = max(f.steal, m.Steal)
		if m.generatorBound() {
			f.bound++
		}
		if m.Result.Bursts != nil {
			f.bursts = append(f.bursts, m.Result.Bursts.Completions...)
			f.late += m.Result.Bursts.Total - m.Result.Bursts.InTime
		}
	}
}

// take draws medians and minima over rounds.
func (f *figures) take(good []Measurement) {
	over := func(value func(Measurement) float64) []float64 {
		var values []float64
		for _, m := range good {
			if v := value(m); v != 0 && !math.IsNaN(v) && !math.IsInf(v, 0) { // zero was not read
				values = append(values, v)
			}
		}
		return values
	}
	f.cpu = spreadOf(over(cpuPerDelivery))
	f.cpuMessage = spreadOf(over(cpuPerMessage))
	f.median = median(over(func(m Measurement) float64 { return m.Result.Latency.MedianMS }))
	f.p99 = median(over(func(m Measurement) float64 { return m.Result.Latency.P99MS }))
	f.resident = median(over(residentPerClient))
	f.busy = median(over(func(m Measurement) float64 {
		return cmp.Or(m.Result.Generator.Thread.BusyInBursts, m.Result.Generator.Thread.Busy)
	}))
}

func cpuPerDelivery(m Measurement) float64 {
	if m.Result.Server == nil {
		return 0
	}
	return m.Result.Server.CPUPerDeliveryUS
}

// cpuPerMessage divides by the publishes of the recorded part, which are those
// whose answers were timed.
func cpuPerMessage(m Measurement) float64 {
	if m.Result.Server == nil || m.Result.Publishes.Answer.Count == 0 {
		return 0
	}
	const microseconds = 1e6
	return m.Result.Server.CPUS * microseconds / float64(m.Result.Publishes.Answer.Count)
}

func residentPerClient(m Measurement) float64 {
	if m.Result.Server == nil {
		return 0
	}
	return m.Result.Server.ResidentPerClientBytes
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{math.NaN(), math.NaN()}
	}
	return spread{median(values), slices.Min(values)}
}

// ratio divides each by its like.
func (s spread) ratio(by spread) spread { return spread{s.median / by.median, s.least / by.least} }

// median returns the middle value, or the mean of the middle two.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// percentile returns the smallest value that so many of a hundred do not exceed.
func percentile(values []float64, percent int) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := (len(sorted)*percent + 99) / 100
	return sorted[max(rank, 1)-1]
}
