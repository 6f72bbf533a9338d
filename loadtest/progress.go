package loadtest

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Progress is told how a test goes, from a goroutine beside the event loop: it
// may take its time, and then misses some.
type Progress interface {
	// Notice is something to say once, such as that a server was started.
	Notice(text string)
	// Update is where the test is, a few times a second.
	Update(Status)
}

// A Status is where a test is.
type Status struct {
	Phase       string // "connecting", "settling", the scenario's name, "draining"
	Done, Total int    // of Unit
	Unit        string // "clients", "bursts", "rounds", "messages", "deliveries"
	Deliveries  int64
	Failures    int64
	Elapsed     time.Duration
}

// progressEvery is how often a Progress is updated.
const progressEvery = 250 * time.Millisecond

// A reporter carries the newest Status from the loop to the Progress.
type reporter struct {
	progress Progress
	newest   atomic.Pointer[Status]
	quit     chan struct{}
	done     sync.WaitGroup
}

// startReporter returns a reporter that must be stopped.
func startReporter(p Progress) *reporter {
	r := &reporter{progress: p, quit: make(chan struct{})}
	r.done.Add(1)
	go r.run()
	return r
}

func (r *reporter) run() {
	defer r.done.Done()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.quit:
			return
		case <-tick.C:
			if s := r.newest.Load(); s != nil {
				r.progress.Update(*s)
			}
		}
	}
}

// stop tells the last Status and returns when the Progress has it.
func (r *reporter) stop() {
	close(r.quit)
	r.done.Wait()
	if s := r.newest.Load(); s != nil {
		r.progress.Update(*s)
	}
}

// silent is the Progress of a caller who has none.
type silent struct{}

func (silent) Notice(string) {}
func (silent) Update(Status) {}
