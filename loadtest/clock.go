package loadtest

import "time"

// A clock is how another process' clock stands to this one's.
//
// Processes of one boot of one machine share the kernel's monotonic clock, from
// which both read their own: then the difference is known as well as two clocks
// can be read one after the other. Else it is measured by asking: the answer was
// read between the question and the answer's coming, so the shortest exchange
// tells it to half its length. Latencies run from instants by the coordinator's
// clock to receipts by the agent's, so they are as uncertain as that.
type clock struct {
	ahead       time.Duration // of the other: its reading less ours
	uncertainty time.Duration // ahead is known to this, either way
	shared      bool          // by the kernel's clock
}

// exchanges are enough that one of them is undisturbed.
const exchanges = 20

// implausible is by how much the kernel's clock may differ from what asking tells,
// besides asking's own uncertainty, before it is not believed: in another time
// namespace it is another clock.
const implausible = time.Millisecond

// readClock reads a loop's clock beside the kernel's.
func readClock(now func() time.Duration) clockReading {
	boot := bootID()
	before := now()
	m := monotonic()
	after := now()
	return clockReading{Now: before + (after-before)/2, Monotonic: m, Apart: after - before, Boot: boot}
}

// compareClocks asks for the other clock several times.
func compareClocks(now func() time.Duration, ask func() (clockReading, error)) (clock, error) {
	asked, shared := clock{uncertainty: never}, clock{uncertainty: never, shared: true}
	for range exchanges {
		sent := now()
		theirs, err := ask()
		if err != nil {
			return clock{}, err
		}
		trip := now() - sent
		if trip/2 < asked.uncertainty {
			asked.ahead, asked.uncertainty = theirs.Now-(sent+trip/2), trip/2
		}
		ours := readClock(now)
		if apart := (theirs.Apart + ours.Apart) / 2; ours.Boot != "" && ours.Boot == theirs.Boot && apart < shared.uncertainty {
			shared.ahead = (ours.Monotonic - ours.Now) - (theirs.Monotonic - theirs.Now)
			shared.uncertainty = apart
		}
	}
	if difference := (shared.ahead - asked.ahead).Abs(); shared.uncertainty != never && difference <= asked.uncertainty+implausible {
		return shared, nil
	}
	return asked, nil
}
