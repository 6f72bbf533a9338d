package stats

import "time"

// A Series is how a duration goes over a run: one Point for each interval, from
// the first recorded to the last, with empty points between.
type Series struct {
	interval time.Duration
	points   []seriesPoint
}

type seriesPoint struct {
	count   int64
	sum     time.Duration
	maximum time.Duration
}

// A Point is one interval of a Series.
type Point struct {
	AtS    float64 `json:"at_s"` // when the interval begins, since the series does
	Count  int64   `json:"count"`
	MeanMS float64 `json:"mean_ms"`
	MaxMS  float64 `json:"max_ms"`
}

// maxSeriesPoints bounds a series; what comes later counts in the last point.
const maxSeriesPoints = 100_000

// NewSeries returns a series of the given interval, which must be positive.
func NewSeries(interval time.Duration) *Series {
	if interval <= 0 {
		panic("BUG: a series needs a positive interval")
	}
	return &Series{interval: interval}
}

// Record adds a duration seen at the given time since the series began.
func (s *Series) Record(at, d time.Duration) {
	i := min(int(max(at, 0)/s.interval), maxSeriesPoints-1)
	for len(s.points) <= i {
		s.points = append(s.points, seriesPoint{})
	}
	p := &s.points[i]
	p.count++
	p.sum += d
	p.maximum = max(p.maximum, d)
}

// Points returns the series.
func (s *Series) Points() []Point {
	points := make([]Point, len(s.points))
	for i, p := range s.points {
		points[i] = Point{
			AtS:   (time.Duration(i) * s.interval).Seconds(),
			Count: p.count,
			MaxMS: Milliseconds(p.maximum),
		}
		if p.count > 0 {
			points[i].MeanMS = Milliseconds(p.sum / time.Duration(p.count))
		}
	}
	return points
}

// Merge adds everything that other has recorded, which must be of the same
// interval.
func (s *Series) Merge(other *Series) {
	if s.interval != other.interval {
		panic("BUG: series of different intervals do not merge")
	}
	for i, p := range other.points {
		if i == len(s.points) {
			s.points = append(s.points, seriesPoint{})
		}
		s.points[i].count += p.count
		s.points[i].sum += p.sum
		s.points[i].maximum = max(s.points[i].maximum, p.maximum)
	}
}
