package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/config"
)

// A manager is a service manager that listens on NOTIFY_SOCKET.
type manager struct {
	*testing.T
	*net.UnixConn
}

func listenAsManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // t.TempDir's name may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	return &manager{t, conn}
}

// hears waits for the next notification.
func (m *manager) hears() string {
	m.Helper()
	require.NoError(m, m.SetReadDeadline(time.Now().Add(surely)))
	text := make([]byte, 1000)
	n, err := m.Read(text)
	require.NoError(m, err)
	return string(text[:n])
}

// hearsBut waits for the next notification other than so.
func (m *manager) hearsBut(so string) string {
	m.Helper()
	said := m.hears()
	for said == so {
		said = m.hears()
	}
	return said
}

// setWatchdog sets the watchdog timeout for this process.
func setWatchdog(t *testing.T, wait time.Duration) {
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", strconv.FormatInt(wait.Microseconds(), 10))
}

// The daemon reports ready once it serves, feeds the watchdog while it serves, and
// reports stopping with the time that it needs.
func TestTheServiceManagerGetsEveryState(t *testing.T) {
	m := listenAsManager(t)
	setWatchdog(t, 2*time.Second)
	d := start(t, func(c *config.Config) { c.DrainWindow = 20 * time.Second })
	require.Equal(t, "READY=1", m.hearsBut("WATCHDOG=1"))
	require.Equal(t, "WATCHDOG=1", m.hears())
	require.Equal(t, "WATCHDOG=1", m.hears())
	require.NoError(t, d.wait())
	said := m.hearsBut("WATCHDOG=1") // one more, or several if this test was slow
	require.Equal(t, fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", 25_000_000), said)
}

// A unit's timeouts do not know the size of the state. The daemon requests more time
// while it writes the state, and while the next daemon reads it.
func TestTheStateExtendsTheManagersTimeout(t *testing.T) {
	m := listenAsManager(t)
	path := t.TempDir()
	const more = "EXTEND_TIMEOUT_USEC=30000000"
	one := start(t, keptIn(path))
	require.Equal(t, more, m.hears())
	require.Equal(t, "READY=1", m.hears())
	one.published()
	require.NoError(t, one.wait())
	require.Contains(t, m.hears(), "STOPPING=1")
	require.Equal(t, more, m.hears())

	two := start(t, keptIn(path))
	require.Equal(t, more, m.hears())
	require.Equal(t, "READY=1", m.hears())
	require.NoError(t, two.wait())
}

// The daemon requests more time every five seconds, but not for ever: a disk may hang.
func TestTheTimeoutIsExtendedRepeatedly(t *testing.T) {
	for lasts, want := range map[time.Duration]int{
		0: 1, 4 * time.Second: 1, 23 * time.Second: 5, busyAtMost - time.Second: 120, time.Hour: 120,
	} {
		m := listenAsManager(t)
		heard := make(chan int)
		go func() { heard <- m.counts("EXTEND_TIMEOUT_USEC=30000000") }()
		synctest.Test(t, func(*testing.T) {
			n := newNotifier(zap.NewNop())
			over := n.busy()
			time.Sleep(lasts)
			over()
			n.tell("X_LAST=1")
		})
		got := <-heard
		require.GreaterOrEqual(t, got, want, lasts)
		require.LessOrEqual(t, got, want+int(lasts/time.Hour), "%v: the last may be asked for with the end", lasts)
	}
}

// counts returns how often the manager got so until X_LAST=1. Anything else gives -1.
func (m *manager) counts(so string) int {
	text := make([]byte, 1000)
	for times := 0; ; times++ {
		n, err := m.Read(text)
		if err != nil || string(text[:n]) == "X_LAST=1" {
			return times
		}
		if string(text[:n]) != so {
			return -1
		}
	}
}

// hearsReloading waits for the start of a reload, with its time.
func (m *manager) hearsReloading() {
	m.Helper()
	require.Regexp(m, `^RELOADING=1\nMONOTONIC_USEC=\d+\n$`, m.hears())
}

// A reload before ready, or after stopping, is not reported.
func TestAReloadIsReportedWhileTheDaemonServes(t *testing.T) {
	m := listenAsManager(t)
	n := newNotifier(zap.NewNop())
	n.reloading()()
	n.ready()
	require.Equal(t, "READY=1", m.hears())

	over := n.reloading()
	m.hearsReloading()
	over()
	require.Equal(t, "READY=1", m.hears())

	over = n.reloading()
	m.hearsReloading()
	n.stopping(0)
	require.Contains(t, m.hears(), "STOPPING=1")
	over()
	n.reloading()()
	n.tell("X_LAST=1")
	require.Equal(t, "X_LAST=1", m.hears())
}

// The sweeper ticks more often than the watchdog must be fed.
func TestTheWatchdogIsFedTwiceInItsTime(t *testing.T) {
	m := listenAsManager(t)
	setWatchdog(t, 10*time.Second)
	n := newNotifier(zap.NewNop())
	begun := time.Now()
	for second := range 11 {
		n.alive(begun.Add(time.Duration(second) * time.Second))
	}
	n.ready()
	for range 3 { // at 0, 5 and 10 s
		require.Equal(t, "WATCHDOG=1", m.hears())
	}
	require.Equal(t, "READY=1", m.hears())
}

func TestWithoutAServiceManagerNothingIsSent(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	core, logged := observer.New(zapcore.InfoLevel)
	n := newNotifier(zap.New(core))
	n.ready()
	n.alive(time.Now())
	n.stopping(time.Second)
	require.Empty(t, logged.All())
}

// Without its service manager the daemon keeps running.
func TestAFailedNotifyIsLogged(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	core, logged := observer.New(zapcore.InfoLevel)
	newNotifier(zap.New(core)).ready()
	require.Len(t, logged.FilterMessageSnippet("could not be notified").All(), 1)
}
