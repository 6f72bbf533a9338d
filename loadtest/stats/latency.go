// Package stats keeps what a load test measures: latencies in a histogram that
// can be merged, and how a figure goes over a run.
//
// Nothing here reads a clock or does I/O, and no value is safe for concurrent
// use: each belongs to the loop that records into it.
package stats

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Bounds of the histogram. Three significant digits keep a percentile within
// 0.1 % of the true one; a slower delivery than an hour counts as an hour in
// percentiles, while mean, deviation and maximum stay exact.
const (
	resolution        = time.Microsecond
	highest           = time.Hour
	significantDigits = 3
)

// A Latency records durations. Percentiles come from a histogram of
// microseconds; count, mean, standard deviation and maximum are exact.
//
// Two Latencies merge into what one would have been had it recorded all of both.
// Percentiles are never averaged.
type Latency struct {
	histogram *hdrhistogram.Histogram

	count   int64
	mean    float64 // seconds
	squares float64 // sum of squared differences from the mean (Welford)
	maximum time.Duration
}

// NewLatency returns an empty Latency.
func NewLatency() *Latency {
	return &Latency{histogram: hdrhistogram.New(1, int64(highest/resolution), significantDigits)}
}

// Record adds one duration. A negative one counts as zero: the clock that
// scheduled is the clock that received, so it can only be a rounding.
func (l *Latency) Record(d time.Duration) {
	d = max(d, 0)
	l.count++
	difference := d.Seconds() - l.mean
	l.mean += difference / float64(l.count)
	l.squares += difference * (d.Seconds() - l.mean)
	l.maximum = max(l.maximum, d)
	if err := l.histogram.RecordValue(int64(min(d, highest) / resolution)); err != nil {
		panic("BUG: a latency within the histogram's bounds does not fit: " + err.Error())
	}
}

// Merge adds everything that other has recorded.
func (l *Latency) Merge(other *Latency) {
	if other.count == 0 {
		return
	}
	if dropped := l.histogram.Merge(other.histogram); dropped != 0 {
		panic("BUG: histograms of one shape do not merge")
	}
	both := float64(l.count + other.count)
	difference := other.mean - l.mean
	l.squares += other.squares + difference*difference*float64(l.count)*float64(other.count)/both
	l.mean += difference * float64(other.count) / both
	l.count += other.count
	l.maximum = max(l.maximum, other.maximum)
}

// Count returns how many durations were recorded.
func (l *Latency) Count() int64 { return l.count }

// Quantile returns the duration that the given share of all does not exceed,
// within 0.1 %: 0.5 is the median.
func (l *Latency) Quantile(share float64) time.Duration {
	if l.count == 0 {
		return 0
	}
	d := time.Duration(l.histogram.ValueAtQuantile(100*share)) * resolution
	return min(d, l.maximum)
}

// A Summary is what a Latency says, in milliseconds. All are zero when Count is.
type Summary struct {
	Count    int64   `json:"count"`
	MeanMS   float64 `json:"mean_ms"`
	MedianMS float64 `json:"median_ms"`
	StdevMS  float64 `json:"stdev_ms"` // of the recorded durations themselves, not of a sample
	P90MS    float64 `json:"p90_ms"`
	P99MS    float64 `json:"p99_ms"`
	P999MS   float64 `json:"p99_9_ms"`
	MaxMS    float64 `json:"max_ms"`
}

// Summary returns the figures of what was recorded so far.
func (l *Latency) Summary() Summary {
	if l.count == 0 {
		return Summary{}
	}
	return Summary{
		Count:    l.count,
		MeanMS:   microPrecise(l.mean * 1000),
		MedianMS: Milliseconds(l.Quantile(0.5)),
		StdevMS:  microPrecise(math.Sqrt(l.squares/float64(l.count)) * 1000),
		P90MS:    Milliseconds(l.Quantile(0.9)),
		P99MS:    Milliseconds(l.Quantile(0.99)),
		P999MS:   Milliseconds(l.Quantile(0.999)),
		MaxMS:    Milliseconds(l.maximum),
	}
}

// Milliseconds returns d in milliseconds, to the microsecond.
func Milliseconds(d time.Duration) float64 {
	return microPrecise(float64(d) / float64(time.Millisecond))
}

func microPrecise(ms float64) float64 { return math.Round(ms*1000) / 1000 }
