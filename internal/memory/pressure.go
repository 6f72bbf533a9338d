package memory

// A Pressure is how short of memory the daemon is.
type Pressure int32

// The pressures. Histories that fill the budget are no pressure: they can be evicted.
const (
	Calm     Pressure = iota
	High              // new sessions are refused, so that the open ones keep working
	Critical          // memory of clients that do not read is freed
)

// String returns the pressure's name in the log.
func (p Pressure) String() string { return [...]string{"none", "high", "critical"}[p] }

// A steps has the parts of a bound, in sixteenths, at which the pressure changes. It ends
// well below where it began: refused clients retry at once, and must not bring it back.
type steps struct{ calm, high, critical int64 }

// next returns the pressure that follows another one, with so much of the bound taken.
// Critical lasts until calm, so that the watcher frees memory until new clients fit.
func (s steps) next(after Pressure, taken, bound int64) Pressure {
	switch part := taken * 16 / bound; {
	case part >= s.critical:
		return Critical
	case part < s.calm:
		return Calm
	case part >= s.high:
		return max(after, High)
	}
	return after
}

// heldSteps are for the bytes that clients hold against the budget. Topics may use half of
// it without pressure. At the last step a quarter is left for histories, from which
// clients that read get their messages.
var heldSteps = steps{calm: 9, high: 10, critical: 12}

// limitSteps are for the bytes that a collection cannot free against the collector's
// limit. At the last step a collection frees so little that the next follows at once. The
// first step is above 8/11: deploy/README.md recommends a limit of which a full budget
// uses so much.
var limitSteps = steps{calm: 13, high: 14, critical: 15}

// Pressure returns how short of memory the daemon is. It is cheap.
func (a *Account) Pressure() Pressure {
	p := Pressure(a.pressure.Load())
	if p < High { // clients may open sessions faster than the watcher looks
		held, budget := a.Held()
		p = heldSteps.next(p, held, budget)
	}
	return p
}

// Tight reports whether queues must hold nothing more. It costs one load.
func (a *Account) Tight() bool { return Pressure(a.pressure.Load()) >= Critical }

// Press sets the pressure. The watcher calls it.
func (a *Account) Press(p Pressure) { a.pressure.Store(int32(p)) }

// noticePressure checks at each publish the bytes that clients hold: a burst must not fill
// the budget before the watcher looks.
func (a *Account) noticePressure() {
	held, budget := a.Held()
	if heldSteps.next(Calm, held, budget) == Critical && Pressure(a.pressure.Swap(int32(Critical))) < Critical {
		a.wakeWatcher()
	}
}

func (a *Account) wakeWatcher() {
	select {
	case a.pressed <- struct{}{}:
	default: // it is awake already
	}
}
