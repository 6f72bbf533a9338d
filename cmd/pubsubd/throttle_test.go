package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/throttle"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
)

// throttleShort are flags of a run of two seconds, with calls that take so long that
// a busy machine's delays do not matter, as a rule.
var throttleShort = []string{"loadtest", "throttle", "--users=10", "--duration=2s", "--call-time=200ms", "--wait=300ms", "--tolerance=30s"}

// measured runs a load test until what it measured is as wanted: a machine that holds a
// process up for as long as calls take spoils a run, but not one after the other.
func measured(t *testing.T, env, args []string, want func(t require.TestingT, r ran)) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { want(c, run(t, env, args...)) }, 4*patience, time.Millisecond)
}

// wantMeasured requires that no promise was broken. A busy machine may make the
// figures the generator's.
func wantMeasured(t require.TestingT, r ran) {
	require.Contains(t, []int{loadtest.ExitOK, loadtest.ExitGeneratorBound}, r.code, "%s\n%s", r.stdout, r.stderr)
}

// The article's experiment in small, on the real daemon: users without a slot are refused,
// the others are served, and no message is lost.
func TestLimitsAreMeasured(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, svg, html := filepath.Join(dir, "t.json"), filepath.Join(dir, "t.svg"), filepath.Join(dir, "t.html")
	args := append(throttleShort, "--settings=2/4,10/4,10/10", "--json", file, "--svg", svg, "--html", html)
	measured(t, nil, args, func(t require.TestingT, r ran) {
		wantMeasured(t, r)
		require.Contains(t, r.stdout, "2/4")
		require.NotContains(t, r.stdout+r.stderr, "whsec_")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(text), "whsec_")
		var result throttle.Result
		require.NoError(t, json.Unmarshal(text, &result))
		wantThrottled(t, result.Rows)
	})
	for _, path := range []string{svg, html} {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(page), "Mean time of calls")
	}
}

// wantThrottled requires that limits of 2/4, 10/4 and 10/10 showed.
func wantThrottled(t require.TestingT, rows []throttle.Row) {
	require.Len(t, rows, 3)
	starved, turns, free := rows[0], rows[1], rows[2]
	require.EqualValues(t, 2, starved.Users)
	require.Positive(t, starved.Refused.Sessions)
	require.GreaterOrEqual(t, starved.Unfinished.Count, int64(8))
	require.EqualValues(t, 10, turns.Users)
	require.Positive(t, turns.Refused.Calls)
	require.LessOrEqual(t, turns.Hook.Most, 4)
	require.EqualValues(t, 10, free.Users)
	require.Zero(t, free.Told.Count)
	require.Greater(t, free.Within.Count, turns.Within.Count)
	require.Greater(t, turns.Within.Count, starved.Within.Count)
	for _, row := range rows {
		require.LessOrEqual(t, row.Within.Count, int64(row.Most))
		require.Equal(t, row.Completed.Count, row.Delivered.Delivered)
		require.Equal(t, row.Completed.Count, row.Hook.Calls)
	}
}

func TestSessionsAreShared(t *testing.T) {
	args := append(throttleShort, "--settings=3/10", "--calls-per-session=1", "--json=-", "--quiet")
	measured(t, nil, args, func(t require.TestingT, r ran) {
		wantMeasured(t, r)
		var result throttle.Result
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &result))
		require.Greater(t, result.Rows[0].Users, int64(3))
	})
}

// The back end serves three at a time: more calls would only wait in it.
func TestTheBestLimitIsFound(t *testing.T) {
	t.Parallel()
	args := append(throttleShort, "--users=5", "--search", "--backend-workers=3", "--max-mean=250ms", "--json=-", "--quiet")
	measured(t, nil, args, func(t require.TestingT, r ran) {
		wantMeasured(t, r)
		var found throttle.SearchResult
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &found))
		require.InDelta(t, 3, found.Calls, 1)
	})
}

func TestAnObjectiveOfCallsThatIsMissed(t *testing.T) {
	measured(t, nil, append(throttleShort, "--settings=10/2", "--max-mean=250ms"), func(t require.TestingT, r ran) {
		require.Equal(t, loadtest.ExitMissed, r.code, "%s\n%s", r.stdout, r.stderr)
		require.Contains(t, r.stdout, "10/2: calls took")
		require.Contains(t, r.stdout, "verdict   MISSED")
	})
}

// A server that runs is measured as it is, with its hook where we listen.
func TestLimitsOfATargetAreMeasured(t *testing.T) {
	secret, backend := strings.Repeat("secret", 6), freeAddress(t)
	file := filepath.Join(t.TempDir(), "pubsubd.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "hooks:\n  publish:\n    url: http://%s/publish\n    secret: %s\n", backend, secret), 0o600))
	d := serveProcess(t, "--config", file, "--limits-calls=5", "--limits-wait=300ms")
	env := []string{webhook.SecretVariable + "=" + secret}
	args := append(throttleShort, "--settings=10000/5", "--target", d.public, "--backend-listen", backend)
	measured(t, env, args, func(t require.TestingT, r ran) {
		wantMeasured(t, r)
		require.Contains(t, r.stdout, d.public)
	})
}

// freeAddress is one that nobody listens at. On Linux it stays so, since it is of a
// loopback address that nobody else uses.
func freeAddress(t *testing.T) string {
	t.Helper()
	ip := "127.0.0.1"
	if runtime.GOOS == "linux" {
		ip = "127.93.0.1"
	}
	l, err := net.Listen("tcp", ip+":0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func TestThrottleCommandLinesThatCannotBeObeyed(t *testing.T) {
	for _, args := range [][]string{
		{"--settings=10"}, {"--settings="}, {"--step=10"}, {"--users=0"}, {"--search"}, {"--search", "--max-mean=1s", "--settings=1/1"},
		{"--search", "--max-mean=1s", "--target=http://127.0.0.1:1"}, {"--target=http://127.0.0.1:1"}, {"--svg=/there/is/no/such/folder/x"}, {"extra"},
	} {
		r := run(t, nil, append([]string{"loadtest", "throttle"}, args...)...)
		require.Equal(t, exitUsage, r.code, "%s\n%s", args, r.stderr)
	}
}
