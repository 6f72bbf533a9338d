package daemon

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

// A notifier tells the service manager how the daemon is (sd_notify(3)). Where
// there is none, that is where NOTIFY_SOCKET is not set, it does nothing. It may be
// used concurrently, but for alive, which is for the sweeper's goroutine.
type notifier struct {
	log      *zap.Logger
	watchdog time.Duration // within which the manager wants to hear; 0: never
	heard    time.Time     // owned by the sweeper

	mu      sync.Mutex // held while it is told, so that it hears in the order of what happens
	serving bool       // from ready until stopping
}

func newNotifier(log *zap.Logger) *notifier {
	watchdog, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("telling nothing to the watchdog", zap.Error(err))
	}
	return &notifier{log: log, watchdog: watchdog}
}

// ready tells that the start is over.
func (n *notifier) ready() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.serving = true
	n.tell(systemd.SdNotifyReady)
}

// reloading tells that a reload has begun; what it returns, that it is over, whatever
// came of it. The manager knows three states: a reload before ready would end the
// start too early, and one after stopping would take that back.
func (n *notifier) reloading() (over func()) {
	n.tellServing(systemd.SdNotifyReloading + "\n" + systemd.SdNotifyMonotonicUsec())
	return func() { n.tellServing(systemd.SdNotifyReady) } // if the start ended meanwhile it is told twice, which is well
}

func (n *notifier) tellServing(state string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.serving {
		n.tell(state)
	}
}

// stopping tells that the drain has begun, and that it may take that long, whatever
// TimeoutStopSec says.
func (n *notifier) stopping(window time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.serving = false
	n.tell(systemd.SdNotifyStopping + "\n" + extend(window+stopMargin))
}

// stopMargin is what the drain may take beyond its window.
const stopMargin = 5 * time.Second

// extend asks for so much time from now on, for a start or a stop that has gone on
// for longer than the unit allows.
func extend(by time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(by.Microseconds(), 10)
}

const (
	// busyFor is how much more time is asked for while something lasts, and busyEvery
	// how often. That is six times as often as need be: the machine is busy, too.
	busyFor   = 30 * time.Second
	busyEvery = 5 * time.Second
	// busyAtMost is for how long it is asked: a disk that hangs must not hold up a
	// machine's end. At 60 MB/s it is enough for 36 GB.
	busyAtMost = 10 * time.Minute
)

// busy asks for more time, at once and again and again until over is called. It is
// for what takes as long as there is state: to write 435 MiB of it took 7.3 s of a
// shared machine, and to read them 18 s; a kill in the middle loses all of it.
func (n *notifier) busy() (over func()) {
	n.tell(extend(busyFor))
	done, stop := context.WithTimeout(context.Background(), busyAtMost)
	var asking sync.WaitGroup
	asking.Go(func() {
		again := time.NewTicker(busyEvery)
		defer again.Stop()
		for {
			select {
			case <-again.C:
				n.tell(extend(busyFor))
			case <-done.Done():
				return
			}
		}
	})
	return func() { stop(); asking.Wait() }
}

// alive feeds the watchdog, twice in the time that it waits (sd_watchdog_enabled(3)).
func (n *notifier) alive(now time.Time) {
	if n.watchdog == 0 || now.Sub(n.heard) < n.watchdog/2 {
		return
	}
	n.heard = now
	n.tell(systemd.SdNotifyWatchdog)
}

// tell cannot fail the daemon: it serves as well unheard.
func (n *notifier) tell(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		n.log.Warn("the service manager was not told", zap.String("state", state), zap.Error(fmt.Errorf("NOTIFY_SOCKET: %w", err)))
	}
}
