package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/config"
)

// A manager is a service manager that listens.
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

// hears waits for the next thing that it is told.
func (m *manager) hears() string {
	m.Helper()
	require.NoError(m, m.SetReadDeadline(time.Now().Add(10*time.Second)))
	text := make([]byte, 1000)
	n, err := m.Read(text)
	require.NoError(m, err)
	return string(text[:n])
}

// setWatchdog makes the manager one that wants to hear from this process.
func setWatchdog(t *testing.T, wait time.Duration) {
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", strconv.FormatInt(wait.Microseconds(), 10))
}

// From start to end: ready when it serves and not before, alive while it does, and
// stopping with the time that it takes.
func TestTheServiceManagerIsTold(t *testing.T) {
	m := listenAsManager(t)
	setWatchdog(t, 2*time.Second)
	d := start(t, func(c *config.Config) { c.DrainWindow = 20 * time.Second })
	require.Equal(t, "READY=1", m.hears())
	require.Equal(t, "WATCHDOG=1", m.hears())
	require.Equal(t, "WATCHDOG=1", m.hears())
	require.NoError(t, d.wait())
	said := "WATCHDOG=1"
	for said == "WATCHDOG=1" { // once more, or as often as this test was slow
		said = m.hears()
	}
	require.Equal(t, fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", 25_000_000), said)
}

// hearsReloading waits for the beginning of a reload, with its time.
func (m *manager) hearsReloading() {
	m.Helper()
	require.Regexp(m, `^RELOADING=1\nMONOTONIC_USEC=\d+\n$`, m.hears())
}

// Neither before the daemon is ready, nor once it stops.
func TestAReloadIsToldWhileTheDaemonServes(t *testing.T) {
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

// Twice in the time, and not with every tick of the sweeper.
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

func TestWithoutAServiceManagerNothingIsTold(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	core, logged := observer.New(zapcore.InfoLevel)
	n := newNotifier(zap.New(core))
	n.ready()
	n.alive(time.Now())
	n.stopping(time.Second)
	require.Empty(t, logged.All())
}

// A service manager that has gone is no reason to go, too.
func TestAServiceManagerThatIsGoneIsLogged(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	core, logged := observer.New(zapcore.InfoLevel)
	newNotifier(zap.New(core)).ready()
	require.Len(t, logged.FilterMessageSnippet("not told").All(), 1)
}
