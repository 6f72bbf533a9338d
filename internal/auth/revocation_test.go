package auth

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// start is when the tests begin.
var start = time.Date(2026, 11, 23, 4, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// openRevocations opens a file for the length of the test.
func openRevocations(t *testing.T, path string, now time.Time) *Revocations {
	t.Helper()
	r, err := OpenRevocations(path, day, day, zap.NewNop(), now)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// reopen ends a daemon, which writes nothing then, and starts the next.
func reopen(t *testing.T, r *Revocations, now time.Time) *Revocations {
	t.Helper()
	r.Close()
	return openRevocations(t, r.path, now)
}

// issued returns the grant of a token.
func issued(subject, id string, at time.Time) *Grant {
	return &Grant{Subject: subject, TokenID: id, Issued: at, Expires: at.Add(day)}
}

// wantList checks what the list says, the newest first.
func wantList(t *testing.T, r *Revocations, now time.Time, want ...string) {
	t.Helper()
	got := []string{}
	list := r.List(1000, now)
	for _, v := range list.Revocations {
		got = append(got, v.Subject+v.TokenID)
	}
	require.Equal(t, append([]string{}, want...), got)
	require.Equal(t, len(want), list.Held)
}

func TestARevocationRefusesTheTokensOfASubjectUpToNow(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	before, now, after := issued("ann", "1", start.Add(-time.Second)), issued("ann", "2", start), issued("ann", "3", start.Add(time.Second))
	require.False(t, r.Revoked(before))
	require.NoError(t, r.Add("ann", "", start))
	for range 2 {
		require.True(t, r.Revoked(before))
		require.True(t, r.Revoked(now), "issued at the same moment")
		require.False(t, r.Revoked(after))
		require.False(t, r.Revoked(issued("bob", "1", start.Add(-time.Second))))
		require.False(t, r.Revoked(&Grant{Subject: "ann"}), "not by a token")
		require.False(t, r.Revoked(&Grant{}))
		r = reopen(t, r, start)
	}
	require.NoError(t, r.Add("ann", "", start.Add(time.Second)))
	require.True(t, r.Revoked(after))
	wantList(t, r, start, "ann")
	require.NoError(t, r.Add("ann", "", start), "the clock went back")
	require.True(t, r.Revoked(after))
}

func TestARevocationRefusesOneToken(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	require.NoError(t, r.Add("", "t-1", start))
	for range 2 {
		require.True(t, r.Revoked(issued("ann", "t-1", start.Add(time.Hour))), "whenever it was issued")
		require.False(t, r.Revoked(issued("ann", "t-2", start.Add(-time.Hour))))
		require.False(t, r.Revoked(issued("ann", "", start.Add(-time.Hour))))
		require.False(t, r.Revoked(issued("t-1", "", start.Add(-time.Hour))), "an id is no subject")
		r = reopen(t, r, start)
	}
	wantList(t, r, start, "t-1")
}

// A revocation is dropped when no token that it refuses can be valid any more.
func TestRevocationsAreKeptAsLongAsTokensLast(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	require.NoError(t, r.Add("ann", "", start))
	require.NoError(t, r.Add("", "t-1", start.Add(time.Hour)))
	require.NoError(t, r.Add("bob", "", start.Add(2*time.Hour)))
	require.NoError(t, r.Add("ann", "", start.Add(3*time.Hour)))
	wantList(t, r, start.Add(3*time.Hour), "ann", "bob", "t-1")
	last := issued("ann", "1", start.Add(3*time.Hour))
	for range 2 {
		wantList(t, r, start.Add(day+time.Hour), "ann", "bob", "t-1")
		r = reopen(t, r, start.Add(day+time.Hour))
	}
	wantList(t, r, start.Add(day+time.Hour+revocationSlack+time.Millisecond), "ann", "bob")
	wantList(t, r, start.Add(day+3*time.Hour+revocationSlack), "ann")
	require.True(t, r.Revoked(last))
	wantList(t, r, start.Add(day+3*time.Hour+revocationSlack+time.Millisecond))
	require.False(t, r.Revoked(last), "nobody accepts a token that old")
	r = reopen(t, r, start.Add(2*day))
	wantList(t, r, start.Add(2*day))
}

// When the list is full, a revocation is refused and none is forgotten.
func TestAFullListRefusesRevocations(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	r.most = 3
	for i := range 3 {
		require.NoError(t, r.Add(fmt.Sprint("user", i), "", start.Add(time.Duration(i)*time.Hour)))
	}
	now := start.Add(3 * time.Hour)
	var p *wire.Problem
	require.ErrorAs(t, r.Add("user3", "", now), &p)
	require.Equal(t, wire.CodeOverloaded, p.Code)
	require.Contains(t, p.Detail, "the list of revocations is full: it has 3, and the next one expires at 2026-11-24T04:10:00Z")
	require.EqualValues(t, (21*time.Hour + 10*time.Minute).Milliseconds(), p.RetryAfterMS)
	require.False(t, r.Revoked(issued("user3", "", start)))
	require.NoError(t, r.Add("user1", "", now), "it is in the list")
	wantList(t, r, now, "user1", "user2", "user0")

	var g metrics.Gauges
	r.Gauges(&g, now)
	require.Equal(t, metrics.Limit{Name: "revocations", Most: 3, InUse: 3}, g.Limits[0])
	require.NoError(t, r.Add("user3", "", start.Add(day+revocationSlack+time.Millisecond)))
	wantList(t, reopen(t, r, now), now, "user3", "user1", "user2", "user0")
}

// The folder is away for a while. What was not acknowledged is not in force.
func TestAFailedWriteLosesNoRevocation(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	r := openRevocations(t, filepath.Join(folder, "revocations"), start)
	require.NoError(t, r.Add("ann", "", start))
	require.NoError(t, os.Rename(folder, folder+".away"))
	require.ErrorIs(t, r.Add("bob", "", start), &wire.Problem{Code: wire.CodeInternal})
	require.False(t, r.Revoked(issued("bob", "", start)))
	wantList(t, r, start, "ann")
	require.NoError(t, os.Rename(folder+".away", folder))
	require.NoError(t, r.Add("cid", "", start))
	wantList(t, reopen(t, r, start), start, "cid", "ann")
}

// A damaged line, and one of another kind, are refused with the place and the remedy.
func TestADamagedFileOfRevocationsIsLeftForTheOperator(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	for line, says := range map[string]string{
		`00000000 {"subject":"ann"}`: "line 2: the line is damaged",
		"297bd0aa {}":                "line 2: the line is not a revocation",
	} {
		content := revocationsHeader + "\n" + line + "\n"
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := OpenRevocations(path, day, day, zap.NewNop(), start)
		require.ErrorContains(t, err, path+", "+says)
		require.ErrorContains(t, err, "restore the file from a backup")
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content, string(kept))
	}
}

func TestOnlyAListOfRevocationsIsOpened(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "other")
	for _, content := range []string{"precious", "precious\n", "pubsubd revocations 2\n", revocationsHeader[:5], strings.Repeat("x", 10000)} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := OpenRevocations(path, day, day, zap.NewNop(), start)
		require.ErrorContains(t, err, path+`, line 1: the file does not begin with "pubsubd revocations 1"`)
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content, string(kept))
	}
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	wantList(t, openRevocations(t, path, start), start)

	_, err := OpenRevocations(path, day, day, zap.NewNop(), start)
	require.ErrorContains(t, err, path+" is in use by another daemon")
	_, err = OpenRevocations(filepath.Join(folder, "gone", "revocations"), day, day, zap.NewNop(), start)
	require.ErrorContains(t, err, "auth.revocations")
	require.ErrorContains(t, err, "folder that the daemon can write to")
	_, err = OpenRevocations(folder, day, day, zap.NewNop(), start)
	require.Error(t, err)
}

// A subject that is revoked again and again takes no memory for each time.
func TestThoseRevokedAgainAreForgotten(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	require.NoError(t, r.Add("bob", "", start))
	for i := range 1000 {
		r.put(Revocation{Subject: "ann", Time: start.Add(time.Duration(i) * time.Millisecond).UnixMilli()})
	}
	require.Len(t, r.records(), 2, "as when the file is written anew")
	require.Len(t, r.order[ofSubject], 2)
	wantList(t, r, start, "ann", "bob")
}

func TestWhatCannotBeRevokedIsExplained(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	for _, c := range []struct {
		r           *Revocations
		subject, id string
		remedy      string
	}{
		{nil, "ann", "", "set auth.revocations"},
		{r, "", "", "send either"},
		{r, "ann", "t-1", "send either"},
		{r, "ann\n", "", "without control characters"},
		{r, strings.Repeat("a", maxSubjectBytes+1), "", "at most 128 bytes"},
		{r, "", strings.Repeat("a", maxTokenIDBytes+1), "revoke the token's subject"},
	} {
		var p *wire.Problem
		require.ErrorAs(t, c.r.Add(c.subject, c.id, start), &p)
		require.Equal(t, wire.CodeInvalidRequest, p.Code)
		require.Contains(t, p.Remedy, c.remedy)
	}
	require.NoError(t, r.Add(strings.Repeat("ä", maxSubjectBytes/2), "", start))
	require.NoError(t, r.Add("", strings.Repeat("\x01", maxTokenIDBytes), start), "the longest line")
	require.Len(t, reopen(t, r, start).List(1000, start).Revocations, 2)
	r.Close()
	require.ErrorIs(t, r.Add("ann", "", start), &wire.Problem{Code: wire.CodeInternal}, "another daemon may have the file")

	var none *Revocations
	require.False(t, none.Revoked(issued("ann", "", start)))
	require.Zero(t, none.List(10, start).Most)
	none.Gauges(&metrics.Gauges{}, start)
	none.Close()
}

// A token that was accepted before, and is in the cache, is refused once it is revoked.
func TestTheAuthorityRefusesRevokedTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	a := newAuthority(t, func(c *Config) { c.Revocations = path })
	t.Cleanup(a.Close)
	now := time.Now().Unix()
	ann, bob, one := token(good("sub", "ann")), token(good("sub", "bob")), token(good("sub", "bob", "jti", "t-1"))
	for range 2 { // the second time from the cache
		wantAccepted(t, a, ann)
		wantAccepted(t, a, bob)
		wantAccepted(t, a, one)
	}
	g := wantAccepted(t, a, ann)
	require.NoError(t, a.Revocations().Add("ann", "", time.Now()))
	require.NoError(t, a.Revocations().Add("", "t-1", time.Now()))
	require.True(t, a.Revoked(g))
	for _, refused := range []string{ann, one, token(good("sub", "ann", "iat", now, "exp", now+601))} {
		wantRefused(t, a, refused, wire.CodeUnauthorized, "the token was revoked")
	}
	wantAccepted(t, a, bob)
	wantAccepted(t, a, token(good("sub", "ann", "iat", time.Now().Unix()+1)))
	var gauges metrics.Gauges
	a.Gauges(&gauges)
	require.Contains(t, gauges.Limits, metrics.Limit{Name: "revocations", Most: maxRevocations, InUse: 2})

	_, err := New(Config{Revocations: path, TokenMaxAge: day}, metrics.New("test"), zap.NewNop())
	require.ErrorContains(t, err, "is in use by another daemon")
}

func TestRevokedAllocatesNothing(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	require.NoError(t, r.Add("ann", "", start))
	g := issued("bob", "t-1", start)
	require.Zero(t, testing.AllocsPerRun(100, func() { r.Revoked(g) }))
}

func TestRevocationsAreUsedConcurrently(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	r := openRevocations(t, path, start)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 10 {
				id := fmt.Sprint(i, ".", j)
				require.NoError(t, r.Add("", id, start))
				require.True(t, r.Revoked(issued("ann", id, start)))
				r.List(10, start)
				r.Gauges(&metrics.Gauges{}, start)
			}
		})
	}
	all.Wait()
	require.Equal(t, 80, reopen(t, r, start).List(1, start).Held)
}

// observed opens a file of revocations whose log the test reads.
func observed(t *testing.T, path string) (*Revocations, *observer.ObservedLogs) {
	t.Helper()
	core, logged := observer.New(zap.InfoLevel)
	r, err := OpenRevocations(path, day, day, zap.New(core), start)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r, logged
}

// The log tells how many revocations the file has at the start, and warns of an empty file: it
// may have had some.
func TestTheLogTellsHowManyRevocationsThereAre(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	r, logged := observed(t, path)
	require.Empty(t, logged.All(), "a new file")
	require.NoError(t, r.Add("ann", "", start))
	require.NoError(t, r.Add("", "t-1", start))
	r.Close()
	r, logged = observed(t, path)
	require.EqualValues(t, 2, logged.FilterMessage("auth.revocations was read").All()[0].ContextMap()["revocations"])
	require.Empty(t, logged.FilterLevelExact(zap.WarnLevel).All())
	r.Close()
	require.NoError(t, os.Truncate(path, 0))
	r, logged = observed(t, path)
	require.Len(t, logged.FilterMessageSnippet("was empty").FilterLevelExact(zap.WarnLevel).All(), 1)
	r.Close()
	_, logged = observed(t, path)
	require.Empty(t, logged.FilterLevelExact(zap.WarnLevel).All(), "the daemon has written its first line")
}

// Somebody changes, replaces or removes the file while the daemon runs. The daemon warns and
// writes it anew, so that the next one has every revocation.
func TestAChangedFileOfRevocationsIsWrittenAnew(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"emptied":   func(path string) error { return os.Truncate(path, 0) },
		"shortened": func(path string) error { return os.Truncate(path, int64(len(revocationsHeader))) },
		"removed":   os.Remove,
		"extended": func(path string) error {
			text, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, append(text, text...), 0o600))
		},
		"overwritten": func(path string) error { // by as many bytes
			text, err := os.ReadFile(path)
			err = errors.Join(err, os.WriteFile(path, bytes.Repeat([]byte("x"), len(text)), 0o600))
			return errors.Join(err, os.Chtimes(path, time.Time{}, time.Now().Add(time.Second)))
		},
		"replaced": func(path string) error {
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path+".old", append(text, '\n'), 0o600)
			}
			return errors.Join(err, os.Rename(path+".old", path))
		},
	} {
		run := func(t *testing.T, checked bool) {
			path := filepath.Join(t.TempDir(), "revocations")
			r, logged := observed(t, path)
			r.Check()
			require.NoError(t, r.Add("ann", "", start))
			r.Check()
			require.Empty(t, logged.All())
			require.NoError(t, change(path))
			if checked {
				r.Check()
				r.Check()
			} else {
				require.NoError(t, r.Add("bob", "", start), "before the check")
			}
			warned := logged.FilterMessageSnippet("the daemon writes it again").All()
			require.Len(t, warned, 1)
			require.EqualValues(t, 1, warned[0].ContextMap()["revocations"])
			require.NoError(t, r.Add("bob", "", start))
			r.Check()
			require.Len(t, logged.All(), 1)
			wantList(t, reopen(t, r, start), start, "bob", "ann")
		}
		t.Run(name, func(t *testing.T) { run(t, true) })
		t.Run(name+" before an Add", func(t *testing.T) { run(t, false) })
	}
	var none *Revocations
	none.Check()
}

// The folder is away for a while. The daemon says it once, and writes the file when it can.
func TestAFileThatCannotBeWrittenAnewIsTriedAgain(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	path := filepath.Join(folder, "revocations")
	r, logged := observed(t, path)
	require.NoError(t, r.Add("ann", "", start))
	require.NoError(t, os.Rename(folder, folder+".away"))
	r.Check()
	r.Check()
	require.Len(t, logged.All(), 1)
	require.NoError(t, os.Mkdir(folder, 0o700))
	r.Check()
	r.Check()
	require.Len(t, logged.All(), 2)
	require.EqualValues(t, 1, logged.FilterMessageSnippet("is on disk again").All()[0].ContextMap()["revocations"])
	wantList(t, reopen(t, r, start), start, "ann")
}

// Somebody removes the file while no daemon runs. The lock beside it tells that there was one.
func TestAMissingFileOfRevocationsIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	r, _ := observed(t, path)
	r.Close()
	require.NoError(t, os.Remove(path))
	r, logged := observed(t, path)
	require.Len(t, logged.FilterMessageSnippet("is missing").FilterLevelExact(zap.WarnLevel).All(), 1)
	r.Close()
	_, logged = observed(t, path)
	require.Empty(t, logged.FilterLevelExact(zap.WarnLevel).All())
}

// A file that cannot be written again is said once, and the next Add tries again.
func TestARemovedFolderOfRevocationsIsLoggedOnce(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	r, logged := observed(t, filepath.Join(folder, "revocations"))
	require.NoError(t, os.RemoveAll(folder))
	r.Check()
	r.Check()
	require.Len(t, logged.All(), 1)
	require.Contains(t, logged.All()[0].ContextMap(), "error")
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.NoError(t, r.Add("ann", "", start))
	wantList(t, reopen(t, r, start), start, "ann")
	r.Close()
	r.Check()
	require.Len(t, logged.All(), 1)
}
