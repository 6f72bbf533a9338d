package loadtest

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExposition(t *testing.T) {
	m, err := readExposition(strings.NewReader(`# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.25
process_resident_memory_bytes 1.5e+07
pubsubd_network_bytes_total{direction="in"} 17 1700000000000
pubsubd_build_info{version="v1",note="a \"b\", {c} d=e"} 1

nonsense
`))
	require.NoError(t, err)
	cpu, ok := m.value("process_cpu_seconds_total", "")
	require.True(t, ok)
	require.InDelta(t, 1.25, cpu, 0)
	require.EqualValues(t, 15_000_000, m.integer("process_resident_memory_bytes", ""))
	require.EqualValues(t, 17, m.integer("pubsubd_network_bytes_total", `direction="in"`))
	require.Zero(t, m.integer("pubsubd_network_bytes_total", `direction="out"`))
	require.Equal(t, map[string]string{"version": "v1", "note": `a "b", {c} d=e`}, m.labels("pubsubd_build_info"))
	require.Nil(t, m.labels("absent"))
}

func TestTheKernelKnowsAProcess(t *testing.T) {
	cpu, ok := processCPU(os.Getpid())
	require.Equal(t, runtime.GOOS == "linux", ok)
	if ok {
		require.Positive(t, cpu)
	}
	_, ok = processCPU(0)
	require.False(t, ok)
	require.Positive(t, ownCPU())
}

func TestTooFewOpenFilesAreSaidBeforehand(t *testing.T) {
	require.NoError(t, checkOpenFiles(10))
	const more = 1 << 40
	err := checkOpenFiles(more)
	require.ErrorContains(t, err, "needs 1099511627840 open files")
	require.ErrorContains(t, err, "ulimit -n 1099511627840")
	require.ErrorContains(t, err, "LimitNOFILE=1099511627840")
}

func TestTheTailKeepsTheLastLines(t *testing.T) {
	var nothing tail
	require.Contains(t, nothing.quote(), "wrote nothing")
	var long tail
	for range 3000 {
		_, err := long.Write([]byte("line\n"))
		require.NoError(t, err)
	}
	_, err := long.Write([]byte("the last\n"))
	require.NoError(t, err)
	require.Equal(t, 10, strings.Count(long.quote(), "\n  "))
	require.True(t, strings.HasSuffix(long.quote(), "the last"))
}
