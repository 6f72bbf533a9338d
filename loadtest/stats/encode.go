package stats

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// encodedLatency is a Latency on its way to another process. The histogram is in
// HdrHistogram's own V2 encoding, which every language has a reader of.
type encodedLatency struct {
	Histogram string        `json:"histogram"`
	Count     int64         `json:"count"`
	Mean      float64       `json:"mean_s"`
	Squares   float64       `json:"squares_s2"`
	Maximum   time.Duration `json:"maximum_ns"`
}

// MarshalJSON writes everything, so that what is read back merges as the original
// would.
func (l *Latency) MarshalJSON() ([]byte, error) {
	text, err := l.histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, fmt.Errorf("histogram: %w", err)
	}
	return json.Marshal(encodedLatency{string(text), l.count, l.mean, l.squares, l.maximum})
}

// UnmarshalJSON reads what MarshalJSON wrote, and refuses histograms of another
// shape, which would not merge.
func (l *Latency) UnmarshalJSON(text []byte) error {
	var e encodedLatency
	if err := json.Unmarshal(text, &e); err != nil {
		return err
	}
	h, err := hdrhistogram.Decode([]byte(e.Histogram))
	if err != nil {
		return fmt.Errorf("histogram: %w", err)
	}
	fresh := NewLatency()
	dropped := fresh.histogram.Merge(h)
	if dropped != 0 || h.SignificantFigures() != significantDigits || h.TotalCount() != e.Count || e.Squares < 0 || e.Maximum < 0 {
		return fmt.Errorf("histogram of %d values, %d digits and %d values outside is not one of %d as are recorded here",
			h.TotalCount(), h.SignificantFigures(), dropped, e.Count)
	}
	fresh.count, fresh.mean, fresh.squares, fresh.maximum = e.Count, e.Mean, e.Squares, e.Maximum
	*l = *fresh
	return nil
}

// encodedSeries is a Series on its way to another process.
type encodedSeries struct {
	Interval time.Duration  `json:"interval_ns"`
	Points   []encodedPoint `json:"points"`
}

type encodedPoint struct {
	Count   int64         `json:"n"`
	Sum     time.Duration `json:"sum_ns"`
	Maximum time.Duration `json:"max_ns"`
}

// MarshalJSON writes everything.
func (s *Series) MarshalJSON() ([]byte, error) {
	e := encodedSeries{Interval: s.interval, Points: make([]encodedPoint, len(s.points))}
	for i, p := range s.points {
		e.Points[i] = encodedPoint{p.count, p.sum, p.maximum}
	}
	return json.Marshal(e)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Series) UnmarshalJSON(text []byte) error {
	var e encodedSeries
	if err := json.Unmarshal(text, &e); err != nil {
		return err
	}
	if e.Interval <= 0 || len(e.Points) > maxSeriesPoints {
		return fmt.Errorf("a series of %d points, %v each, is not one", len(e.Points), e.Interval)
	}
	*s = Series{interval: e.Interval, points: make([]seriesPoint, len(e.Points))}
	for i, p := range e.Points {
		s.points[i] = seriesPoint{p.Count, p.Sum, p.Maximum}
	}
	return nil
}
