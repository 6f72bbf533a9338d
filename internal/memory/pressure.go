package memory

// A Pressure says how short of memory the daemon is.
type Pressure int32

// The pressures. Histories that fill the budget are calm: they make room whenever it is
// needed.
const (
	Calm     Pressure = iota
	High              // no session is opened, so that the open ones can go on
	Critical          // clients that do not read give up what they hold
)

// String returns the pressure's name, as the log has it.
func (p Pressure) String() string { return [...]string{"none", "high", "critical"}[p] }

// A steps is at which parts of a bound, in sixteenths, the pressure changes. It ends
// well below where it began: refused clients return at once, and must not bring it back.
type steps struct{ calm, high, critical int64 }

// next is the pressure after another with so much of the bound taken. One that is
// critical stays so until it is calm: relief continues until new clients fit.
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

// heldSteps are of what clients hold against the budget. Topics may take half of it by
// themselves, and leave it calm. At the last step a quarter is left to histories, which
// need it to hand messages to clients that do read.
var heldSteps = steps{calm: 9, high: 10, critical: 12}

// limitSteps are of what a collection cannot free against the collector's limit. At the
// last a collection frees so little that the next follows at once. The first is above
// 8/11, which a full budget and its clients take of the limit that deploy/README.md
// recommends.
var limitSteps = steps{calm: 13, high: 14, critical: 15}

// Pressure returns how short of memory the daemon is. It costs little.
func (a *Account) Pressure() Pressure {
	p := Pressure(a.pressure.Load())
	if p < High { // sessions may be opened faster than the watcher looks
		held, budget := a.Held()
		p = heldSteps.next(p, held, budget)
	}
	return p
}

// Tight reports whether queues must hold nothing more. It costs one load.
func (a *Account) Tight() bool { return Pressure(a.pressure.Load()) >= Critical }

// Press sets the pressure. The watcher does, which looks at the whole process.
func (a *Account) Press(p Pressure) { a.pressure.Store(int32(p)) }

// noticePressure looks at each publish at what clients hold: a burst must not fill the
// budget before the watcher looks.
func (a *Account) noticePressure() {
	held, budget := a.Held()
	if heldSteps.next(Calm, held, budget) == Critical && Pressure(a.pressure.Swap(int32(Critical))) < Critical {
		a.wakeWatcher()
	}
}

func (a *Account) wakeWatcher() {
	select {
	case a.pressed <- struct{}{}:
	default: // it will look anyway
	}
}
