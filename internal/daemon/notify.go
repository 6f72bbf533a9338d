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

// A notifier reports the daemon's state to the service manager (sd_notify(3)). Without
// NOTIFY_SOCKET it does nothing. It may be used concurrently, except alive, which is for
// the sweeper's goroutine.
type notifier struct {
	log      *zap.Logger
	watchdog time.Duration // the manager's watchdog timeout; 0: none
	fed      time.Time     // when the watchdog was last fed; owned by the sweeper

	mu      sync.Mutex // held while a state is sent, so that states arrive in order
	serving bool       // from ready until stopping
}

func newNotifier(log *zap.Logger) *notifier {
	watchdog, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the watchdog is not notified", zap.Error(err))
	}
	return &notifier{log: log, watchdog: watchdog}
}

// ready reports that the start is over.
func (n *notifier) ready() { n.tellNow(true, systemd.SdNotifyReady) }

// stopping reports that the drain has begun, and asks for its window, whatever
// TimeoutStopSec says.
func (n *notifier) stopping(window time.Duration) {
	n.tellNow(false, systemd.SdNotifyStopping+"\n"+extend(window+stopMargin))
}

// tellNow sends a state that begins or ends serving.
func (n *notifier) tellNow(serving bool, state string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.serving = serving
	n.tell(state)
}

// reloading reports that a reload has begun, and over that it has ended, whatever its
// result. The manager knows three states: a reload before ready would end the start too
// early, and one after stopping would undo that.
func (n *notifier) reloading() (over func()) {
	n.tellServing(systemd.SdNotifyReloading + "\n" + systemd.SdNotifyMonotonicUsec())
	return func() { n.tellServing(systemd.SdNotifyReady) } // it may repeat the end of the start, which does no harm
}

func (n *notifier) tellServing(state string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.serving {
		n.tell(state)
	}
}

// stopMargin is how long the drain may take beyond its window.
const stopMargin = 5 * time.Second

// extend returns a request for so much time from now on, for a start or a stop that
// takes longer than the unit allows.
func extend(by time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(by.Microseconds(), 10)
}

const (
	// busyFor is how much more time is requested while something lasts, and busyEvery how
	// often: six times as often as necessary, as the machine may be busy.
	busyFor   = 30 * time.Second
	busyEvery = 5 * time.Second
	// busyAtMost is how long requests are repeated: a disk that hangs must not delay a
	// machine's shutdown. At 60 MB/s it is enough for 36 GB.
	busyAtMost = 10 * time.Minute
)

// busy requests more time, at once and repeatedly until over is called. It is for the
// log on disk. With SyncStop, a kill while it is written loses all of it.
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

// alive feeds the watchdog twice in its timeout (sd_watchdog_enabled(3)).
func (n *notifier) alive(now time.Time) {
	if n.watchdog == 0 || now.Sub(n.fed) < n.watchdog/2 {
		return
	}
	n.fed = now
	n.tell(systemd.SdNotifyWatchdog)
}

// tell sends a state. A failure is logged only: the daemon works without a manager.
func (n *notifier) tell(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		n.log.Warn("the service manager could not be notified", zap.String("state", state), zap.Error(fmt.Errorf("NOTIFY_SOCKET: %w", err)))
	}
}
