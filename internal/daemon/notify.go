package daemon

import (
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
	n.tell(systemd.SdNotifyStopping + "\nEXTEND_TIMEOUT_USEC=" + strconv.FormatInt((window+stopMargin).Microseconds(), 10))
}

// stopMargin is what stopping may take beyond the drain window.
const stopMargin = 5 * time.Second

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
