package broker

// A Pressure says how short of memory the daemon is.
type Pressure int32

const (
	// Calm is a daemon that has memory. Histories that fill the budget are calm: they
	// make room whenever something needs it.
	Calm Pressure = iota
	// High has no session opened any more, so that those that there are can go on.
	High
	// Critical has queues pin nothing more, and sessions that do not read let go of
	// what theirs pin.
	Critical
)

// String returns the pressure's name, as the log has it.
func (p Pressure) String() string { return [...]string{"none", "high", "critical"}[p] }

// Steps are the parts of a bound, in sixteenths, at which a pressure changes. It ends
// well below where it began: what was refused or let go of comes back at once, and
// must not bring it back with it.
type Steps struct{ Calm, High, Critical int64 }

// Next is the pressure with so much of the bound taken, after another. One that is
// critical stays so until it is calm: what is done then goes on until others may come.
func (s Steps) Next(after Pressure, taken, bound int64) Pressure {
	switch part := taken * 16 / bound; {
	case part >= s.Critical:
		return Critical
	case part < s.Calm:
		return Calm
	case part >= s.High:
		return max(after, High)
	}
	return after
}

// Pressing are the steps of what is held (see Held) in the budget. Topics and
// subscriptions may take half of it by themselves (admitOverhead), and leave it calm.
// At the last step a quarter is still the histories', which need it to hand messages
// to whoever does read.
var Pressing = Steps{Calm: 9, High: 10, Critical: 12}

// Held returns what counts against the budget and no eviction frees, since clients
// hold it: messages that queues have, whether histories still do or not, the queues
// and lists of unacked frames, topics and subscriptions.
func (b *Broker) Held() (held, budget int64) {
	m := &b.memory
	return m.frames.Queued.Load() + m.queues.Load() + b.overhead(), b.said()
}

// Pressure returns how short of memory the daemon is. It costs little.
func (b *Broker) Pressure() Pressure {
	set := Pressure(b.memory.pressure.Load())
	if set < High { // sessions may be opened faster than anyone looks
		held, budget := b.Held()
		set = Pressing.Next(set, held, budget)
	}
	return set
}

// Tight reports whether queues should pin nothing more. It costs a load.
func (b *Broker) Tight() bool { return Pressure(b.memory.pressure.Load()) >= Critical }

// Press sets the pressure that somebody has found who looks at the whole process.
func (b *Broker) Press(p Pressure) { b.memory.pressure.Store(int32(p)) }

// Pressed gets a value when the pressure has become critical since it was last set: a
// burst must not fill the budget before anyone looks. Never closed; it holds one.
func (b *Broker) Pressed() <-chan struct{} { return b.memory.pressed }

// noticePressure notices what is held at each publish: that is what queues come to
// pin.
func (b *Broker) noticePressure() {
	held, budget := b.Held()
	if Pressing.Next(Calm, held, budget) < Critical || Pressure(b.memory.pressure.Swap(int32(Critical))) == Critical {
		return
	}
	select {
	case b.memory.pressed <- struct{}{}:
	default:
	}
}

// said is the budget as the settings have it.
func (b *Broker) said() int64 { return int64(b.force.Load().MemoryBudget) }

// spare is which part of the budget stays for messages, however much of it was
// shrunk: without any nothing can be published.
const spare = 8

// budget is the budget in force: as the settings have it, or as it was shrunk.
func (b *Broker) budget() int64 {
	said := b.said()
	shrunk := b.memory.shrunk.Load()
	if shrunk == 0 {
		return said
	}
	held, _ := b.Held()
	return min(said, max(shrunk, held+said/spare))
}

// Shrink has histories and encodings make do with so many bytes less than they have
// now, the oldest messages going first, until Regrow. It returns how much that freed.
func (b *Broker) Shrink(bytes int64) (freed int64) {
	before := b.used()
	b.memory.shrunk.Store(max(1, before-bytes))
	b.reclaim(0)
	return max(0, before-b.used())
}

// grown is which part of the budget comes back with each Regrow.
const grown = 32

// Regrow gives back a part of what Shrink took.
func (b *Broker) Regrow() {
	shrunk := b.memory.shrunk.Load()
	if shrunk == 0 {
		return
	}
	said := b.said()
	if shrunk = max(shrunk, b.used()) + said/grown; shrunk >= said {
		shrunk = 0
	}
	b.memory.shrunk.Store(shrunk)
}
