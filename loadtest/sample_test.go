package loadtest

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

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
	cpu, ok := processesCPU(os.Getpid())
	require.Equal(t, runtime.GOOS == "linux", ok)
	if ok {
		require.Positive(t, cpu)
	}
	_, ok = processesCPU(0)
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

// A scrape says little of a window's CPU time if it was asked or answered far from
// the window's end; the kernel is asked at the very moment.
func TestCPUTimeIsOfTheWindowOrOfNothing(t *testing.T) {
	const begins = 10 * time.Second
	near := func(early, took time.Duration, source string) sample {
		return sample{asked: begins - early, answered: begins - early + took, cpu: time.Second, source: source, resident: 1}
	}
	for name, c := range map[string]struct {
		begin, end sample
		cpu        float64
		source     string
	}{
		"metrics":             {near(sampleLead, ms, "metrics"), near(0, ms, "metrics"), 2, "metrics"},
		"begun too early":     {near(600*ms, ms, "metrics"), near(0, ms, "metrics"), 0, ""},
		"began too late":      {near(sampleLead, 800*ms, "metrics"), near(0, ms, "metrics"), 0, ""},
		"ended too late":      {near(sampleLead, ms, "metrics"), near(0, 600*ms, "metrics"), 0, ""},
		"kernel, slow scrape": {near(sampleLead, 3*time.Second, "kernel"), near(0, 3*time.Second, "kernel"), 2, "kernel"},
		"two sources":         {near(sampleLead, ms, "kernel"), near(0, ms, "metrics"), 0, ""},
		"no beginning":        {sample{}, near(0, ms, "metrics"), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSampler(0, "", nil)
			c.end.cpu = 3 * time.Second
			s.taken[windowNears], s.taken[windowEnds] = c.begin, c.end
			r := s.server(1, Generator{WindowS: 5, Deliveries: 1000}, begins)
			require.InDelta(t, c.cpu, r.CPUS, 1e-9)
			require.InDelta(t, 1000*c.cpu, r.CPUPerDeliveryUS, 1e-9)
			require.Equal(t, c.source, r.CPUSource)
			require.Equal(t, c.begin.source == "metrics" && c.cpu == 0, r.CPUNote != "")
		})
	}
	s := newSampler(0, "", nil)
	s.taken[windowNears] = sample{cpu: time.Second, source: "kernel"}
	s.taken[windowBegins] = sample{cpu: 2 * time.Second, source: "kernel"}
	s.taken[windowEnds] = sample{cpu: 5 * time.Second, source: "kernel"}
	require.InDelta(t, 3, s.server(1, Generator{WindowS: 5}, begins).CPUS, 1e-9, "from the window's own beginning")
}
