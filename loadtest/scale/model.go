package main

import "math"

// A model is what the measurements amount to.
type model struct {
	connected     *fit // resident bytes by clients, before the first message
	memory        *fit // the same after the last message
	subscriptions *fit // resident bytes of a session by its subscriptions
	topics        *fit // resident bytes by topics
	bytes         *fit // CPU µs of a delivery by bytes of payload
	publishes     *fit // CPU µs of a burst by messages in it

	reference *Measured // the most clients that were measured; nil if none
}

func newModel(m Measurements) model {
	whole := func(m *Measured) float64 { return float64(m.ResidentBytes) }
	return model{
		connected:     m.fit("clients", whole),
		memory:        m.fit("clients", func(m *Measured) float64 { return float64(m.ResidentEndBytes) }),
		subscriptions: m.fit("subscriptions", (*Measured).residentPerSession),
		topics:        m.fit("topics", whole),
		bytes:         m.fit("bytes", func(m *Measured) float64 { return m.CPUPerDeliveryUS }),
		publishes:     m.fit("topics", (*Measured).cpuPerBurstUS),
		reference:     m.most("clients"),
	}
}

// of returns the points of a series.
func (m *Measurements) of(series string) []Measured {
	var points []Measured
	for _, p := range m.Points {
		if p.Series == series {
			points = append(points, p)
		}
	}
	return points
}

// fit returns the line through a series' usable points, or nil if there is none.
func (m *Measurements) fit(series string, figure func(*Measured) float64) *fit {
	var x, y []float64
	for _, p := range m.of(series) {
		if p.usable() {
			x, y = append(x, p.X), append(y, figure(&p))
		}
	}
	if f, ok := fitLine(x, y); ok {
		return &f
	}
	return nil
}

// most returns the series' usable point of the largest quantity.
func (m *Measurements) most(series string) *Measured {
	var best *Measured
	for _, p := range m.of(series) {
		if p.usable() && (best == nil || p.X > best.X) {
			best = &p
		}
	}
	return best
}

// What is taken for granted where nothing was measured.
const (
	kernelLow, kernelHigh = 4e3, 5e3 // bytes that the kernel holds for a socket; see the page
	gibibyte              = 1 << 30
)

// A machine is one that a prediction is for.
type machine struct {
	cores, gibibytes, gigabits float64
	used                       float64 // the share of each that may be in use
}

var largerMachine = machine{cores: 32, gibibytes: 64, gigabits: 25, used: 0.7}

// A load is clients that each get so many messages a second.
type load struct {
	clients float64
	rate    float64
}

// needs are what a load takes.
type needs struct {
	memoryLow, memoryHigh float64 // GiB: the process', with the kernel's least and most
	cores                 float64
	gigabits              float64 // each second, of the server's answers
}

// predict returns what a load needs if nothing but its size changes, and whether
// enough was measured to say.
func (m *model) predict(l load) (needs, bool) {
	if m.memory == nil || m.reference == nil || m.reference.Deliveries == 0 {
		return needs{}, false
	}
	deliveries := l.clients * l.rate
	process := m.memory.at(l.clients)
	return needs{
		memoryLow:  (process + kernelLow*l.clients) / gibibyte,
		memoryHigh: (process + kernelHigh*l.clients) / gibibyte,
		cores:      deliveries * m.reference.CPUPerDeliveryUS / 1e6,
		gigabits:   deliveries * m.bytesOut() * 8 / 1e9,
	}, true
}

// bytesOut is what the server sends for a delivery.
func (m *model) bytesOut() float64 {
	return float64(m.reference.BytesOut) / float64(m.reference.Deliveries)
}

// A share is how many machines some needs take, by what runs out first.
type share struct {
	memory, cores, network float64 // machines that each alone would take
	machines               int
}

// spread returns how many machines it takes to meet needs.
func spread(n needs, on machine) share {
	s := share{
		memory:  n.memoryHigh / (on.gibibytes * on.used),
		cores:   n.cores / (on.cores * on.used),
		network: n.gigabits / (on.gigabits * on.used),
	}
	s.machines = int(math.Ceil(max(s.memory, s.cores, s.network)))
	return s
}

// runsOut names what a machine has too little of first.
func (s *share) runsOut() string {
	switch max(s.memory, s.cores, s.network) {
	case s.memory:
		return "memory"
	case s.cores:
		return "cores"
	}
	return "network"
}
