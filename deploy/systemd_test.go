package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/memory"
)

// maxExposure is what systemd-analyze security may say of the unit, in tenths of its
// points: 0 is a unit that can do nothing, 96 one without any sandbox. Version 252
// says 11.
const maxExposure = "12"

// unit writes the unit to where its binary exists, and returns its path.
func unit(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		missing(t, "systemd-analyze is not installed", "apt-get install systemd")
	}
	text := strings.ReplaceAll(read(t, "systemd/pubsubd.service"), "/usr/local/bin/pubsubd", "/bin/true")
	path := filepath.Join(t.TempDir(), "pubsubd.service")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestTheUnitsAreUnderstood(t *testing.T) {
	service := unit(t)
	socket := filepath.Join(filepath.Dir(service), "pubsubd.socket")
	require.NoError(t, os.WriteFile(socket, []byte(read(t, "systemd/pubsubd.socket")), 0o600))
	said, err := run(t, "systemd-analyze", "verify", "--man=no", service, socket)
	require.NoError(t, err, said)
	require.Empty(t, said)
}

// The socket is where the settings say, and is open to those whom the service would serve.
func TestTheSocketUnitFitsTheService(t *testing.T) {
	socket, service := read(t, "systemd/pubsubd.socket"), read(t, "systemd/pubsubd.service")
	cfg, err := load(t, nil, "--config", "pubsubd.yaml")
	require.NoError(t, err)
	require.Equal(t, []string{cfg.Listen.Public}, values(socket, "ListenStream"))
	require.Equal(t, []string{"public"}, values(socket, "FileDescriptorName"))
	for _, key := range []string{"IPAddressDeny", "IPAddressAllow"} {
		require.NotEmpty(t, values(service, key))
		require.Equal(t, values(service, key), values(socket, key), key)
	}
}

func TestTheUnitExposesLittle(t *testing.T) {
	said, err := run(t, "systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold="+maxExposure, unit(t))
	require.NoError(t, err, said)
}

// values returns all values of a unit's key, in order.
func values(text, key string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, key+"="); ok {
			all = append(all, strings.TrimSpace(value))
		}
	}
	return all
}

// The daemon takes what the unit gives it, and the unit waits for its drain.
func TestTheUnitFitsTheDaemon(t *testing.T) {
	text := read(t, "systemd/pubsubd.service")
	arguments := strings.Fields(values(text, "ExecStart")[0])
	require.Equal(t, []string{"/usr/local/bin/pubsubd", "serve", "--config", "/etc/pubsubd/pubsubd.yaml"}, arguments)
	cfg, err := load(t, values(text, "Environment"), "--config", "pubsubd.yaml")
	require.NoError(t, err)
	stop, err := time.ParseDuration(values(text, "TimeoutStopSec")[0])
	require.NoError(t, err)
	require.Greater(t, stop, cfg.DrainWindow+5*time.Second)
	require.Equal(t, []string{"kill -HUP $MAINPID"}, values(text, "ExecReload"))
}

// The collector's limit leaves room for the budget and for as many clients as the
// unit says.
func TestTheUnitsMemoryIsEnough(t *testing.T) {
	text := read(t, "systemd/pubsubd.service")
	require.Contains(t, text, "for 6 KiB a client, here 50,000 of them")
	const limit = 1 << 30
	require.Contains(t, values(text, "Environment"), "GOMEMLIMIT=1GiB")
	cfg, err := load(t, nil, "--config", "pubsubd.yaml")
	require.NoError(t, err)
	budget := memory.Budget(cfg.Broker.MemoryBudget, limit)
	require.GreaterOrEqual(t, int64(limit), budget/8*11+50_000*6<<10)
}
