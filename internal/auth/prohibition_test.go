package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func everything(string) bool { return true }

// forbid forbids topics for an hour.
func forbid(t *testing.T, r *Revocations, subject string, topics ...string) {
	t.Helper()
	require.NoError(t, r.Forbid(subject, topics, time.Now().Add(time.Hour), "spam", everything, time.Now()))
}

// wantForbidden checks what is forbidden to a subject.
func wantForbidden(t *testing.T, r *Revocations, subject string, want ...string) {
	t.Helper()
	var got []string
	for _, p := range r.Forbidden(subject) {
		got = append(got, p.Topic)
	}
	require.ElementsMatch(t, want, got)
}

// inUse returns the metric of prohibitions.
func inUse(r *Revocations) (n int) {
	var g metrics.Gauges
	r.Gauges(&g, time.Now())
	for _, limit := range g.Limits {
		if limit.Name == "prohibitions" {
			n = limit.InUse
		}
	}
	return n
}

// refusal returns the problem of an error.
func refusalOf(t *testing.T, err error) *wire.Problem {
	t.Helper()
	p, ok := errors.AsType[*wire.Problem](err)
	require.True(t, ok, "%v", err)
	return p
}

func TestAProhibitionCoversWhatItsPatternMatches(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), time.Now())
	forbid(t, r, "ann", "chat.42", "log.*", "deep.>")
	for name, want := range map[string]bool{
		"chat.42": true, "chat.4": false, "chat.42.a": false, "chat.*": false, ">": false,
		"log.a": true, "log.*": true, "log.a.b": false, "log.>": false,
		"deep.a.b": true, "deep.*": true, "deep.>": true, "deep": false,
		"_presence.chat.42": true, "_presence.log.a": true, "_presence.chat.4": false,
	} {
		require.Equal(t, want, r.Forbidden("ann").Find(name) != nil, name)
		require.Nil(t, r.Forbidden("bob").Find(name))
		require.Nil(t, r.Forbidden("").Find(name))
	}
	refused := r.Forbidden("ann").Find("chat.42").Problem("chat.42")
	require.Equal(t, wire.CodeForbidden, refused.Code)
	require.Equal(t, "spam", refused.Detail, "the application's own words")
	require.Contains(t, refused.Remedy, "again after ")
	require.NoError(t, r.Forbid("ann", []string{"chat.42"}, time.Now().Add(time.Hour), "", everything, time.Now()))
	require.Contains(t, r.Forbidden("ann").Find("chat.42").Problem("chat.42").Detail, "the application has forbidden")
	var none *Revocations
	require.Nil(t, none.Forbidden("ann").Find("chat.42"))
}

// A client resumes with the positions that it has, also of topics that only its pattern matches.
// The pattern leaves out what is forbidden. Whoever names it is refused.
func TestWhatAPatternResumesIsNotRefused(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), time.Now())
	forbid(t, r, "ann", "chat.42", "log.*")
	for starts, refused := range map[string]bool{
		"chat.42": true, "chat.42@k3:7": true, "chat.42@oldest": true, "chat.1": false, "chat.*": false,
		"chat.*@k3:0 chat.42@k3:7": false, "chat.42@k3:7 chat.* chat.1": false,
		"chat.* chat.42": true, "chat.* chat.42@oldest": true, "log.* chat.42@k3:7": true,
		"chat.*@k3:0 log.*@k3:0": true, "log.*@k3:0 >@k3:0": true, "log.*@k3:0 log.>@k3:0": true,
	} {
		var list []wire.Start
		for text := range strings.FieldsSeq(starts) {
			start, err := wire.ParseStart(text)
			require.NoError(t, err)
			list = append(list, start)
		}
		err := r.Forbidden("ann").CheckStarts(list)
		if !refused {
			require.NoError(t, err, starts)
			continue
		}
		require.ErrorIs(t, err, problem.New(wire.CodeForbidden, "", ""), starts)
	}
}

// More patterns than a session may have are not matched with the topics of the request.
func TestTooManyPatternsAreLeftToTheSession(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), time.Now())
	forbid(t, r, "ann", "chat.42")
	starts := []wire.Start{{Topic: "chat.42"}}
	for i := range MaxPatterns {
		starts = append(starts, wire.Start{Topic: fmt.Sprintf("log%d.*", i)})
	}
	require.ErrorIs(t, r.Forbidden("ann").CheckStarts(starts), problem.New(wire.CodeForbidden, "", ""))
	starts = append(starts, wire.Start{Topic: "more.*"})
	require.NoError(t, r.Forbidden("ann").CheckStarts(starts), "the session refuses it")
}

// Of several prohibitions, the one that ends last says when the topic may be used again.
func TestTheProhibitionThatEndsLastIsFound(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), time.Now())
	never := func(string) bool { return false }
	for i, topic := range []string{"chat.1", "chat.>", "chat.*"} {
		require.NoError(t, r.Forbid("ann", []string{topic}, time.Now().Add(time.Duration([]int{1, 3, 2}[i])*time.Hour), topic, never, time.Now()))
	}
	require.Equal(t, "chat.>", r.Forbidden("ann").Find("chat.1").Reason)
}

// A second request replaces the first, but for what its caller may not manage. Nothing is forbidden
// any more after an empty one. A restart changes nothing.
func TestAProhibitionReplacesAndOutlastsARestart(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), time.Now())
	require.NoError(t, r.Add("eve", "", time.Now()))
	forbid(t, r, "ann", "chat.1", "chat.2")
	forbid(t, r, "bob", "chat.1")
	forbid(t, r, "ann", "chat.2", "news")
	ofChat := func(name string) bool { return strings.HasPrefix(name, "chat.") }
	require.NoError(t, r.Forbid("ann", []string{"chat.3"}, time.Now().Add(time.Hour), "", ofChat, time.Now()))
	for range 2 {
		wantForbidden(t, r, "ann", "news", "chat.3")
		wantForbidden(t, r, "bob", "chat.1")
		require.Equal(t, "spam", r.Forbidden("ann").Find("news").Reason)
		require.Equal(t, 3, inUse(r))
		wantList(t, r, time.Now(), "eve")
		r = reopen(t, r, time.Now())
	}
	require.NoError(t, r.Forbid("ann", nil, time.Time{}, "", ofChat, time.Now()))
	require.NoError(t, os.Remove(r.path))
	r.Check() // writes the file anew
	r = reopen(t, r, time.Now())
	wantForbidden(t, r, "ann", "news")
	wantForbidden(t, r, "bob", "chat.1")
	require.NoError(t, r.Forbid("ann", nil, time.Time{}, "", everything, time.Now()))
	for range 2 {
		wantForbidden(t, r, "ann")
		wantForbidden(t, r, "bob", "chat.1")
		r = reopen(t, r, time.Now())
	}
}

// What has ended is not forbidden, does not count, and is not read again.
func TestAProhibitionEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	synctest.Test(t, func(t *testing.T) {
		r := openRevocations(t, path, time.Now())
		defer r.Close()
		require.NoError(t, r.Forbid("ann", []string{"a"}, time.Now().Add(time.Minute), "", everything, time.Now()))
		require.NoError(t, r.Forbid("bob", []string{"a", "b"}, time.Now().Add(time.Hour), "", everything, time.Now()))
		time.Sleep(time.Minute - time.Millisecond)
		require.NotNil(t, r.Forbidden("ann").Find("a"))
		time.Sleep(time.Millisecond)
		require.Nil(t, r.Forbidden("ann").Find("a"))
		require.NotNil(t, r.Forbidden("bob").Find("a"))
		require.Equal(t, 2, inUse(r))
		wantForbidden(t, r, "ann")
		r = reopen(t, r, time.Now())
		require.Equal(t, 2, inUse(r))
		time.Sleep(time.Hour)
		require.Zero(t, inUse(r))
		require.Empty(t, r.prohibited.of)
		require.Zero(t, r.prohibited.due.Load())
	})
}

// Each publish reads the prohibitions, so neither a scrape nor a file that is written anew may keep
// it waiting.
func TestToKeepProhibitionsSeldomLocksThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	synctest.Test(t, func(t *testing.T) {
		r := openRevocations(t, path, time.Now())
		defer r.Close()
		p := &r.prohibited
		for i := range 3 {
			until := time.Now().Add(time.Minute + time.Duration(i)*400*time.Millisecond)
			require.NoError(t, r.Forbid(fmt.Sprint("user", i), []string{"a"}, until, "", everything, time.Now()))
		}
		n := 0
		for range p.records() {
			n++
			require.True(t, p.mu.TryLock(), "the lock is free while a record is encoded")
			p.mu.Unlock()
		}
		require.Equal(t, 3, n)

		pruned := make(chan struct{})
		p.mu.Lock()
		go func() {
			p.prune(time.Now())
			close(pruned)
		}()
		synctest.Wait()
		select {
		case <-pruned:
		default:
			t.Error("prune waits for the lock although no prohibition has ended")
		}
		p.mu.Unlock()
		<-pruned

		time.Sleep(time.Minute)
		require.Equal(t, 2, inUse(r))
		time.Sleep(900 * time.Millisecond)
		require.Equal(t, 2, inUse(r), "prune scanned less than a second ago")
		require.Nil(t, r.Forbidden("user1").Find("a"), "it has ended nevertheless")
		time.Sleep(100 * time.Millisecond)
		require.Zero(t, inUse(r))
	})
}

// An older version, which knows only revocations, reads a file in which nothing is forbidden any more.
func TestAnOlderVersionReadsAFileWithoutProhibitions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	content := func() string {
		t.Helper()
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	synctest.Test(t, func(t *testing.T) {
		r := openRevocations(t, path, time.Now())
		require.NoError(t, r.Add("eve", "", time.Now()))
		forbid(t, r, "ann", "a")
		forbid(t, r, "bob", "a")
		forbid(t, r, "ann")
		r = reopen(t, r, time.Now())
		require.Contains(t, content(), "prohibited", "bob's prohibition counts")
		forbid(t, r, "bob")
		r.Close()
		require.NotContains(t, content(), "prohibited")
		r = reopen(t, r, time.Now())
		wantList(t, r, time.Now(), "eve")
		forbid(t, r, "ann", "a")
		time.Sleep(time.Hour)
		r.Close()
		require.NotContains(t, content(), "prohibited", "it has ended by itself")
		require.NoError(t, os.Remove(path))
		r.Close()
		require.NoFileExists(t, path, "another daemon may have the file")
	})
}

// A request that changes nothing, as a repeated one, writes nothing.
func TestWhatChangesNothingIsNotWritten(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), time.Now())
	size := func() int64 {
		t.Helper()
		is, err := os.Stat(r.path)
		require.NoError(t, err)
		return is.Size()
	}
	empty := size()
	forbid(t, r, "ann")
	require.Equal(t, empty, size(), "nothing was to lift")
	until := time.Now().Add(time.Hour)
	require.NoError(t, r.Forbid("ann", []string{"a"}, until, "spam", everything, time.Now()))
	one := size()
	require.Greater(t, one, empty)
	require.NoError(t, r.Forbid("ann", []string{"a"}, until, "spam", everything, time.Now()))
	require.Equal(t, one, size())
	require.NoError(t, r.Forbid("ann", nil, time.Time{}, "", func(string) bool { return false }, time.Now()))
	require.Equal(t, one, size(), "the caller may lift nothing")
	forbid(t, r, "ann")
	require.Greater(t, size(), one)
	wantForbidden(t, r, "ann")
}

// A full list refuses more, but not less. It has a place again when a prohibition ends.
func TestTheListOfProhibitionsIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	synctest.Test(t, func(t *testing.T) {
		r := openRevocations(t, path, time.Now())
		defer r.Close()
		r.prohibited.most = 3
		require.NoError(t, r.Forbid("ann", []string{"a"}, time.Now().Add(time.Minute), "", everything, time.Now()))
		forbid(t, r, "bob", "a", "b")
		full := func(subject string, topics ...string) {
			t.Helper()
			refused := refusalOf(t, r.Forbid(subject, topics, time.Now().Add(time.Hour), "", everything, time.Now()))
			require.Equal(t, wire.CodeOverloaded, refused.Code)
			require.EqualValues(t, 60_000, refused.RetryAfterMS)
		}
		full("cid", "a")
		full("bob", "a", "b", "c")
		forbid(t, r, "bob", "c", "d")
		wantForbidden(t, r, "bob", "c", "d")
		require.Equal(t, 3, inUse(r))
		forbid(t, r, "ann", "a")
		refused := refusalOf(t, r.Forbid("cid", []string{"a"}, time.Now().Add(time.Hour), "", everything, time.Now()))
		require.EqualValues(t, 3600_000, refused.RetryAfterMS, "what would have ended first was lifted")
		require.NoError(t, r.Forbid("ann", []string{"a"}, time.Now().Add(time.Minute), "", everything, time.Now()))
		time.Sleep(time.Minute)
		forbid(t, r, "cid", "a")
		require.Equal(t, 3, inUse(r))

		r.prohibited.most = 1000
		most := make([]string, MaxForbidden)
		for i := range most {
			most[i] = fmt.Sprint("a", i)
		}
		forbid(t, r, "dan", most...)
		none := func(string) bool { return false }
		refused = refusalOf(t, r.Forbid("dan", []string{"b"}, time.Now().Add(time.Hour), "", none, time.Now()))
		require.Contains(t, refused.Detail, "at most 64")
		require.Contains(t, refused.Detail, "got 1, and 64 others", "which the caller cannot lift")
		refused = refusalOf(t, r.Forbid("dan", append(most, "b"), time.Now().Add(time.Hour), "", everything, time.Now()))
		require.Contains(t, refused.Detail, "got 65")
		require.NotContains(t, refused.Detail, "others")
	})
}

func TestWhatCannotBeForbidden(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	later := start.Add(time.Hour)
	var none *Revocations
	for says, err := range map[string]error{
		"auth.revocations":       none.Forbid("ann", []string{"a"}, later, "", everything, start),
		"subject must":           r.Forbid("", []string{"a"}, later, "", everything, start),
		"later than":             r.Forbid("ann", []string{"a"}, start, "", everything, start),
		"at most 366 days after": r.Forbid("ann", []string{"a"}, start.Add(366*24*time.Hour+time.Millisecond), "", everything, start),
	} {
		refused := refusalOf(t, err)
		require.Equal(t, wire.CodeInvalidRequest, refused.Code)
		require.Contains(t, refused.Detail+refused.Remedy, says)
	}
	require.NoError(t, r.Forbid("ann", []string{"a"}, start.Add(366*24*time.Hour), "", everything, start))
	require.NoError(t, r.Forbid("ann", nil, time.Time{}, "", everything, start))
	r.Close()
	require.Equal(t, wire.CodeInternal, refusalOf(t, r.Forbid("ann", []string{"a"}, later, "", everything, start)).Code)
	wantForbidden(t, r, "ann")
}

// The longest record is read again.
func TestTheLongestProhibitionFitsIntoALine(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), time.Now())
	subject, reason := strings.Repeat(`"`, maxSubjectBytes), strings.Repeat(`\`, MaxReasonBytes)
	topics := make([]string, MaxForbidden)
	for i := range topics {
		topics[i] = strings.Repeat("a", 240) + fmt.Sprintf(".%014d", i)
	}
	require.NoError(t, wire.CheckTopic(topics[0]))
	require.Len(t, topics[0], 255)
	until := time.Now().Add(time.Hour)
	require.NoError(t, r.Forbid(subject, topics, until, reason, everything, time.Now()))
	forbid(t, r, "ann", "chat.>")
	r = reopen(t, r, time.Now())
	wantForbidden(t, r, subject, topics...)
	wantForbidden(t, r, "ann", "chat.>")
	require.Equal(t, reason, r.Forbidden(subject)[0].Reason)
}

// A version that knows only revocations must not take a prohibition for the revocation of all
// tokens of a subject.
func TestAProhibitionIsNoRevocation(t *testing.T) {
	var v Revocation
	require.NoError(t, json.Unmarshal(prohibitionRecord{"ann", Prohibitions{{Topic: "a", Until: 1}}}.bytes(), &v))
	require.Equal(t, Revocation{}, v)
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	require.ErrorContains(t, r.read([]byte(`{"topics":[]}`)), "not a revocation")
}

// Each publish asks twice.
func TestToAskWhatIsForbiddenAllocatesNothing(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), time.Now())
	for range 2 {
		require.Zero(t, testing.AllocsPerRun(100, func() { r.Forbidden("ann").Find("chat.1") }))
		forbid(t, r, "ann", "chat.42")
	}
}

// A client resumes a pattern with the positions of all topics that it had.
func BenchmarkCheckStarts(b *testing.B) {
	forbidden := Prohibitions{{Topic: "chat.>", Until: time.Now().Add(time.Hour).UnixMilli()}}
	starts := make([]wire.Start, 8000, 8001)
	for i := range starts {
		starts[i] = wire.Start{Topic: fmt.Sprint("chat.", i), From: wire.FromPosition}
	}
	starts = append(starts, wire.Start{Topic: "*.*", From: wire.FromPosition})
	for b.Loop() {
		if err := forbidden.CheckStarts(starts); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkForbidden(b *testing.B) {
	for _, subjects := range []int{0, 1} {
		b.Run(fmt.Sprintf("subjects=%d", subjects), func(b *testing.B) {
			r := &Revocations{}
			for range subjects {
				r.prohibited.of = map[string]Prohibitions{"bob": {{Topic: "a", Until: 1}}}
				r.prohibited.count.Store(1)
			}
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					r.Forbidden("ann").Find("chat.1")
				}
			})
		})
	}
}
