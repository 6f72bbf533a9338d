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
	forbid(t, r, "ann", "chat.42")
	for starts, refused := range map[string]bool{
		"chat.42": true, "chat.42@k3:7": true, "chat.42@oldest": true, "chat.1": false, "chat.*": false,
		"chat.*@k3:0 chat.42@k3:7": false, "chat.42@k3:7 chat.* chat.1": false,
		"chat.* chat.42": true, "chat.* chat.42@oldest": true, "log.* chat.42@k3:7": true,
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
		require.Zero(t, r.prohibited.first)
	})
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
		refused := refusalOf(t, r.Forbid("dan", []string{"b"}, time.Now().Add(time.Hour), "", none, time.Now()))
		require.Contains(t, refused.Detail, "at most 64")
	})
}

func TestWhatCannotBeForbidden(t *testing.T) {
	r := openRevocations(t, filepath.Join(t.TempDir(), "revocations"), start)
	later := start.Add(time.Hour)
	var none *Revocations
	for says, err := range map[string]error{
		"auth.revocations": none.Forbid("ann", []string{"a"}, later, "", everything, start),
		"subject must":     r.Forbid("", []string{"a"}, later, "", everything, start),
		"later than":       r.Forbid("ann", []string{"a"}, start, "", everything, start),
	} {
		refused := refusalOf(t, err)
		require.Equal(t, wire.CodeInvalidRequest, refused.Code)
		require.Contains(t, refused.Detail+refused.Remedy, says)
	}
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
