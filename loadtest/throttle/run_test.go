package throttle

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
)

// measured runs the experiment against a fake, and returns its only row.
func measured(t *testing.T, cfg Config) (Row, Verdict) {
	t.Helper()
	require.NoError(t, cfg.check())
	r, err := Run(t.Context(), cfg, quietProgress{})
	require.NoError(t, err)
	require.Len(t, r.Rows, 1)
	return r.Rows[0], r.Verdict
}

// wantSound requires that nothing went wrong. A busy machine may make the generator's
// figures its own.
func wantSound(t *testing.T, v Verdict) {
	t.Helper()
	require.Empty(t, v.Failed)
	require.Empty(t, v.Missed)
	if v.ExitCode != loadtest.ExitGeneratorBound {
		require.Zero(t, v.ExitCode)
	}
}

// There is a place for everyone: nobody is refused, and calls take their time.
func TestUsersThatAreAllServed(t *testing.T) {
	t.Parallel()
	cfg := startFake(t, &fakeServer{}, Setting{8, 8})
	row, v := measured(t, cfg)
	wantSound(t, v)
	require.EqualValues(t, 8, row.Users)
	require.Zero(t, row.Told.Count)
	require.GreaterOrEqual(t, row.Completed.MeanMS, 100.0)
	require.GreaterOrEqual(t, row.Completed.Count, row.Within.Count)
	require.LessOrEqual(t, row.Within.Count, int64(row.Most))
	require.Equal(t, row.Completed.Count, row.Hook.Calls)
	require.Equal(t, row.Completed.Count, row.Delivered.Delivered)
	require.LessOrEqual(t, row.Hook.Most, 8)
	require.InDelta(t, row.Completed.MeanMS, row.Waited.MeanMS+row.Served.MeanMS, 0.1)
	var ended, begun int64
	for i := range row.Ends {
		ended += row.Ends[i].Count
	}
	for i := range row.Begins {
		begun += row.Begins[i].Count
	}
	require.Equal(t, []int64{row.Completed.Count, row.Completed.Count}, []int64{ended, begun}, "the course has all of them")
}

// Two calls at a time for eight users: they take turns, and who waits is told so.
func TestUsersThatTakeTurns(t *testing.T) {
	t.Parallel()
	row, v := measured(t, startFake(t, &fakeServer{}, Setting{8, 2}))
	wantSound(t, v)
	require.EqualValues(t, 8, row.Users)
	require.Positive(t, row.Refused.Calls)
	require.Zero(t, row.Refused.Sessions)
	require.Equal(t, row.Refused.Calls, row.Told.Count)
	require.Positive(t, row.Told.MeanMS)
	require.LessOrEqual(t, row.Hook.Most, 2)
	require.LessOrEqual(t, row.Within.Count, int64(row.Most))
	require.Greater(t, row.Waited.MeanMS, 100.0, "three of four wait, which is no service")
	require.GreaterOrEqual(t, row.Served.MeanMS, 100.0)
	require.InDelta(t, row.Completed.MeanMS, row.Waited.MeanMS+row.Served.MeanMS, 0.1, "but waiting counts")
}

// Two sessions for eight users: six of them never have one, which the mean of the
// others' calls would not show.
func TestUsersThatStarve(t *testing.T) {
	t.Parallel()
	row, v := measured(t, startFake(t, &fakeServer{}, Setting{2, 8}))
	wantSound(t, v)
	require.EqualValues(t, 2, row.Users)
	require.Positive(t, row.Refused.Sessions)
	require.GreaterOrEqual(t, row.Unfinished.Count, int64(6))
	require.Greater(t, row.Unfinished.MaxMS, 1900.0)
	require.Greater(t, row.WithUnfinished, row.Completed.MeanMS)
}

// With sessions that end after a call everyone has its turn, and every message comes
// though nobody subscribes meanwhile.
func TestSessionsThatAreShared(t *testing.T) {
	t.Parallel()
	fake := &fakeServer{delay: 50 * time.Millisecond}
	cfg := startFake(t, fake, Setting{2, 8})
	cfg.CallsPerSession, cfg.Wait, fake.wait = 1, time.Minute, time.Minute // all stand in line
	cfg.Duration = 5 * time.Second
	row, v := measured(t, cfg)
	wantSound(t, v)
	require.Greater(t, row.Users, int64(2))
	require.GreaterOrEqual(t, row.Sessions, row.Completed.Count)
}

func TestUsersThatComeLittleByLittleAndPause(t *testing.T) {
	t.Parallel()
	cfg := startFake(t, &fakeServer{}, Setting{8, 8})
	cfg.Step, cfg.Think, cfg.Duration = Step{2, 200 * time.Millisecond}, 40*time.Millisecond, 5*time.Second
	row, v := measured(t, cfg)
	wantSound(t, v)
	require.EqualValues(t, 8, row.Users)
	require.LessOrEqual(t, row.Within.Count, int64(row.Most))
	require.Less(t, row.Most, 8*50*3/4)
}

// A back end that serves one at a time: who was let in waits there.
func TestABackendWithFewWorkers(t *testing.T) {
	t.Parallel()
	cfg := startFake(t, &fakeServer{}, Setting{8, 4})
	cfg.BackendWorkers = 1
	row, v := measured(t, cfg)
	wantSound(t, v)
	require.Greater(t, row.Served.MeanMS, 150.0)
	require.LessOrEqual(t, row.Within.Count, int64(20))
	require.Equal(t, 4, row.Hook.Most)
}

// Who is held up is late, which the figures say; nobody gives up.
func TestUsersThatAreHeldUp(t *testing.T) {
	t.Parallel()
	cfg := startFake(t, &fakeServer{dawdle: 3 * time.Second}, Setting{8, 8})
	cfg.Tolerance = 100 * time.Millisecond
	row, v := measured(t, cfg)
	require.Empty(t, v.Failed)
	require.Zero(t, row.Untold)
	require.EqualValues(t, 8, row.Completed.Count)
	require.GreaterOrEqual(t, row.Late, int64(8))
}

// Whatever a server does that it must not fails the run.
func TestServersThatBreakTheirPromises(t *testing.T) {
	first := func(instead func(frame string) []string) *fakeServer {
		return &fakeServer{pass: func(n uint64, frame string) []string {
			if n != 1 {
				return []string{frame}
			}
			return instead(frame)
		}}
	}
	tell := func(r func(w http.ResponseWriter, r *http.Request)) *fakeServer { return &fakeServer{refuse: r} }
	// Which of several was the first is up to the machine.
	const late, promptly = "neither admitted nor refused within 300ms, the first: ", 200 * time.Millisecond
	for name, c := range map[string]struct {
		server    *fakeServer
		code      int
		says      string
		tolerance time.Duration // for what it makes users wait for; 0: it does not
	}{
		"loses a message":   {first(func(string) []string { return nil }), loadtest.ExitMissed, ", 0 duplicates, 0 out of order, 0 gaps, 0 surplus", 5 * time.Second},
		"doubles a message": {first(func(frame string) []string { return []string{frame, frame} }), loadtest.ExitMissed, "0 lost, ", 0},
		"announces a gap": {first(func(frame string) []string {
			topic := strings.Split(strings.Split(frame, `"`)[3], "@")[0]
			return []string{strings.ReplaceAll(`{"gap":{"topic":"T","reason":"slow","after":"T@e1:0","position":"T@e1:1"}}`, "T", topic) + "\n"}
		}), loadtest.ExitMissed, " gaps, 0 surplus", 5 * time.Second},
		"tells nobody":        {tell(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), loadtest.ExitMissed, "neither answer nor refusal", 2 * time.Second},
		"tells late":          {tell(func(w http.ResponseWriter, r *http.Request) { sleep(r.Context(), 400*time.Millisecond); refuse(w, 10) }), loadtest.ExitMissed, late, promptly},
		"lets in late":        {&fakeServer{dawdle: 400 * time.Millisecond}, loadtest.ExitMissed, late, promptly},
		"opens late":          {&fakeServer{dawdleOpening: 400 * time.Millisecond}, loadtest.ExitMissed, late, promptly},
		"promises less":       {&fakeServer{says: time.Second}, loadtest.ExitFailed, "set --wait to that time", 0},
		"says not when":       {tell(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 0) }), loadtest.ExitFailed, "answered 503", 0},
		"passes the hook by":  {&fakeServer{asks: func() int { return 0 }}, loadtest.ExitMissed, "had allowed 0 times", 0},
		"asks the hook twice": {&fakeServer{asks: func() int { return 2 }}, loadtest.ExitMissed, "had allowed 2 times", 0},
		"signs badly":         {&fakeServer{unsigned: true}, loadtest.ExitFailed, "had no valid signature", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := startFake(t, c.server, Setting{8, 2})
			if c.tolerance > 0 {
				cfg.Tolerance, cfg.spare = c.tolerance, time.Second
			}
			if c.says == late {
				cfg.CallTime = time.Second // for twice as long, users wait for what is late
			}
			_, v := measured(t, cfg)
			require.Equal(t, c.code, v.ExitCode, "%+v", v)
			require.Contains(t, strings.Join(append(v.Failed, v.Missed...), "\n"), c.says)
		})
	}
}

func TestObjectives(t *testing.T) {
	t.Parallel()
	cfg := startFake(t, &fakeServer{}, Setting{8, 2})
	cfg.MaxMean, cfg.MaxP95 = 60*time.Millisecond, 70*time.Millisecond
	_, v := measured(t, cfg)
	require.Equal(t, loadtest.ExitMissed, v.ExitCode)
	require.Len(t, v.Missed, 2)
	require.Contains(t, v.Missed[0], "8/2: calls took")
	require.Contains(t, v.Missed[1], "p95 of calls")
}

func TestConfigsThatCannotBeMeasured(t *testing.T) {
	for flag, spoil := range map[string]func(*Config){
		"--target: name":                func(c *Config) { c.Target = "" },
		"--target: set PUBSUBD_":        func(c *Config) { c.Secret = "short" },
		"--server-pid":                  func(c *Config) { c.Target, c.ServerCommand, c.ServerPID = "", []string{"x"}, 7 },
		"--settings: with --target":     func(c *Config) { c.Settings = Default().Settings },
		"--settings: name at least one": func(c *Config) { c.Settings = nil },
		"twice":                         func(c *Config) { c.Settings = []Setting{{1, 1}, {1, 1}} },
		"--users":                       func(c *Config) { c.Users = 0 },
		"--duration":                    func(c *Config) { c.Duration = 0 },
		"--call-time":                   func(c *Config) { c.CallTime = -1 },
		"--wait":                        func(c *Config) { c.Wait = 25 * time.Hour },
		"--tolerance":                   func(c *Config) { c.Tolerance = 0 },
		"--think":                       func(c *Config) { c.Think = -1 },
		"--step":                        func(c *Config) { c.Step = Step{1, time.Second} },
		"--step: the":                   func(c *Config) { c.Step = Step{1, 1 << 62} },
		"--calls-per-session":           func(c *Config) { c.CallsPerSession = -1 },
		"--backend-workers":             func(c *Config) { c.BackendWorkers = -1 },
		"--pending-sessions":            func(c *Config) { c.PendingSessions = 0 },
		"--waiting-calls":               func(c *Config) { c.WaitingCalls = 0 },
		"--max-mean":                    func(c *Config) { c.MaxMean = -1 },
		"--max-p95":                     func(c *Config) { c.MaxP95 = -1 },
	} {
		cfg := Default()
		cfg.Target, cfg.Secret, cfg.Settings, cfg.Users, cfg.Duration = "http://127.0.0.1:1", webhook.NewSecret(), []Setting{{1, 1}}, 8, time.Second
		require.NoError(t, cfg.check())
		spoil(&cfg)
		_, err := Run(t.Context(), cfg, quietProgress{})
		require.ErrorAs(t, err, new(ConfigError), flag)
		require.ErrorContains(t, err, flag)
	}
}
