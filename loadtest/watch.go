package loadtest

import (
	"runtime"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/eventloop"
)

// A watch is the generator's eye on itself: how busy it was within the recorded
// window, and while bursts were under way.
type watch struct {
	loop eventloop.Loop

	began, ended usage // of the window; zero until then
	delivered    int64 // in the window

	inBurst bool
	burst   usage // when the burst under way began
	// Sums over bursts.
	burstBusy, burstWaited, burstWall time.Duration
}

// usage is what the generator had used at one moment.
type usage struct {
	at          time.Duration
	thread      eventloop.Usage
	threadKnown bool
	process     time.Duration
	in, out     int64
}

func (w *watch) usage(now time.Duration) usage {
	u := usage{at: now, process: ownCPU()}
	u.thread, u.threadKnown = w.loop.Usage()
	u.in, u.out = w.loop.Traffic()
	return u
}

// begin and end bound the window.
func (w *watch) begin(now time.Duration) { w.began = w.usage(now) }
func (w *watch) end(now time.Duration)   { w.ended = w.usage(now) }

// underway says whether deliveries are awaited, of a scenario that has bursts.
func (w *watch) underway(awaited bool, now time.Duration) {
	if awaited == w.inBurst || w.began.at == 0 {
		return
	}
	w.inBurst = awaited
	u := w.usage(now)
	if awaited {
		w.burst = u
		return
	}
	w.addBurst(u)
}

func (w *watch) addBurst(end usage) {
	w.burstWall += max(end.at-w.burst.at, 0)
	w.burstBusy += max(busy(w.burst, end), 0)
	w.burstWaited += max(end.thread.Waited-w.burst.thread.Waited, 0)
}

// finish ends with the window the burst that was never complete.
func (w *watch) finish() {
	if w.inBurst {
		w.inBurst = false
		w.addBurst(w.ended)
	}
}

// cut ends the window when the loop has ended before its time: nothing is known of
// its thread any more.
func (w *watch) cut(now time.Duration) {
	if w.began.at == 0 || w.ended.at != 0 {
		return
	}
	w.end(now)
	w.ended.threadKnown, w.ended.thread = false, eventloop.Usage{}
}

// busy is the CPU time of the thread that runs the loop or, where that cannot be
// told, of the process, spread over its cores.
func busy(from, to usage) time.Duration {
	if to.threadKnown {
		return to.thread.CPU - from.thread.CPU
	}
	return (to.process - from.process) / time.Duration(runtime.GOMAXPROCS(0))
}

func (w *watch) generator() Generator {
	if w.ended.at == 0 {
		return Generator{}
	}
	wall := w.ended.at - w.began.at
	return Generator{
		WindowS:    wall.Seconds(),
		Deliveries: w.delivered,
		CPUS:       (w.ended.process - w.began.process).Seconds(),
		Thread: Thread{
			Known:          w.ended.threadKnown,
			Busy:           share(busy(w.began, w.ended), wall),
			Waited:         share(max(w.ended.thread.Waited-w.began.thread.Waited, 0), wall),
			BusyInBursts:   share(w.burstBusy, w.burstWall),
			WaitedInBursts: share(w.burstWaited, w.burstWall),
		},
		BytesIn:  w.ended.in - w.began.in,
		BytesOut: w.ended.out - w.began.out,
	}
}

func share(part, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
