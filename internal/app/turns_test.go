package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// named returns a list of n topics, in JSON.
func named(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`"n%d"`, i))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// connected returns a two-way connection in a format.
func (a *App) connected(t *testing.T, format string) transport.Duplex {
	t.Helper()
	d, err := a.connect(t.Context(), Caller{Who: a.cfg.Limiter.WhoAt(addr)}, "format="+format+"&topic=x")
	require.NoError(t, err)
	t.Cleanup(func() { a.End(d.Session) })
	return d
}

func encoded(format, command string) []byte {
	if format == "cbor" {
		return cbor.AppendFromJSON(nil, []byte(command))
	}
	return []byte(command)
}

// A loop carries out a command with a few topics. It leaves many topics, and patterns, to others.
func TestALoopDoesWhatIsQuick(t *testing.T) {
	for _, format := range []string{"json", "cbor"} {
		a := newApp(t)
		d := a.connected(t, format)
		for command, quick := range map[string]bool{
			`{"subscribe":` + named(quickNames) + `,"ref":1}`:                                               true,
			`{"subscribe":` + named(quickNames+1) + `,"ref":1}`:                                             false,
			`{"unsubscribe":` + named(quickNames) + `,"ref":1}`:                                             true,
			`{"subscribe":` + named(quickNames/2) + `,"unsubscribe":` + named(quickNames/2+1) + `,"ref":1}`: false,
			`{"subscribe":["a.*"],"ref":1}`:                                                                 false,
			`{"unsubscribe":["a.>"],"ref":1}`:                                                               false,
			`{"publish":{"topic":"a","data":` + named(1000) + `},"ref":1}`:                                  true, // at most as large as a command that a loop reads
		} {
			reply, later, _, err := d.Do(t.Context(), d.Session, transport.Action{Command: encoded(format, command)}, nil)
			require.NoError(t, err, command)
			require.Equal(t, quick, later == nil, command)
			if later != nil {
				reply = finished(later(t.Context()))
			}
			require.NotNil(t, reply, command)
			require.Nil(t, reply.Problem, command)
			require.EqualValues(t, 1, *reply.Ref)
		}
		_, later, _, err := d.Do(t.Context(), d.Session, transport.Action{Command: encoded(format, `{"unknown":1,"subscribe":`+named(quickNames+1)+`}`)}, nil)
		require.NoError(t, err)
		require.NotNil(t, later, "many topics are not even decoded")
		require.NotNil(t, finished(later(t.Context())).Problem)
	}
	a := newApp(t)
	for n, waits := range map[int]bool{quickNames: false, quickNames + 1: true} {
		require.Equal(t, waits, a.OpeningWaits(&Caller{}, make([]wire.Start, n)))
	}
	require.True(t, a.OpeningWaits(&Caller{}, []wire.Start{{Topic: "a.*"}}), "for a search")
	a.cfg.Authorize = asksAbout("asked")
	require.True(t, a.OpeningWaits(&Caller{}, []wire.Start{{Topic: "asked"}}))
	a.cfg.Authority = &gatekeeper{unverified: true}
	require.True(t, a.OpeningWaits(&Caller{}, nil), "for the check of a signature")
}

// A session with many topics, or with a pattern, waits for its turn, whichever way it is opened.
func TestAnOpeningThatTakesLongWaitsForItsTurn(t *testing.T) {
	for name, way := range subscribes {
		if way.kind == limit.Requests {
			continue // it opens none
		}
		between := "&topic="
		if slices.Contains([]string{"a session", "a poll with a body", "a TCP connection"}, name) {
			between = `","`
		}
		t.Run(name, func(t *testing.T) {
			few := make([]string, quickNames)
			for i := range few {
				few[i] = fmt.Sprintf("n%d", i)
			}
			for _, long := range [][]string{append(few[:quickNames:quickNames], "last"), {"a.*", "last"}} {
				a := newApp(t)
				synctest.Test(t, func(t *testing.T) {
					open := func(topics []string) error { return way.by(a, Caller{}, "", strings.Join(topics, between)) }
					others := a.takeTurns(t, turns())
					require.NoError(t, open(few))
					over := make(chan error, 1)
					go func() { over <- open(long) }()
					synctest.Wait()
					require.Empty(t, over)
					require.False(t, a.cfg.Broker.Has("last"))
					require.Equal(t, 2, a.sessions(), "it has its slot")
					others()
					require.NoError(t, <-over)
					require.True(t, a.cfg.Broker.Has("last"))
					a.takeTurns(t, turns())() // all are free again
				})
			}
		})
	}
}

// A session whose client leaves while it waits for its turn frees its slot.
func TestAnOpeningThatWaitsForItsTurnGivesUp(t *testing.T) {
	a := newApp(t)
	synctest.Test(t, func(t *testing.T) {
		defer a.takeTurns(t, turns())()
		ctx, leave := context.WithCancel(t.Context())
		over := make(chan error, 2)
		go func() { _, err := a.openSession(ctx, Caller{}, bodyOf(`{"topics":["a.*"]}`)); over <- err }()
		go func() { _, err := a.connect(ctx, Caller{}, "topic=a.*"); over <- err }()
		synctest.Wait()
		require.Equal(t, 2, a.sessions())
		leave()
		require.ErrorIs(t, <-over, context.Canceled)
		require.ErrorIs(t, <-over, context.Canceled)
		require.Zero(t, a.sessions())
	})
}

// To renew a session with many subscriptions, each is checked, which is nothing for a loop. It waits
// for its turn, over HTTP, too. A session with few subscriptions does not wait.
func TestARenewalThatTakesLongWaitsForItsTurn(t *testing.T) {
	a := newApp(t, func(c *Config) { c.Authority = &gatekeeper{} }) // every call has a new grant
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		for _, n := range []int{quickNames, quickNames + 1} {
			opened, err := a.openSession(t.Context(), Caller{}, bodyOf(`{"topics":`+named(n)+`}`))
			require.NoError(t, err)
			ids = append(ids, opened.Session)
		}
		others := a.takeTurns(t, turns())
		renew := func(id string) (s *session.Session, patched chan error, later transport.Later) {
			d, err := a.connect(t.Context(), Caller{}, "ack=0&session="+id)
			require.NoError(t, err)
			patched = make(chan error, 1)
			go func() {
				patched <- a.changeSession(t.Context(), Caller{}, id, bodyOf("{}"))
			}()
			synctest.Wait()
			_, later, _, err = d.Do(t.Context(), d.Session, transport.Action{Command: []byte(`{"auth":"t","ref":1}`)}, nil)
			require.NoError(t, err)
			return d.Session, patched, later
		}
		_, patched, later := renew(ids[0])
		require.NoError(t, <-patched)
		reply := finished(later(t.Context()))
		require.Nil(t, reply.Problem)

		s, patched, later := renew(ids[1])
		old := s.Grant()
		go func() { reply = finished(later(t.Context())) }()
		synctest.Wait()
		require.Empty(t, patched)
		require.Same(t, old, s.Grant())
		others()
		require.NoError(t, <-patched)
		synctest.Wait()
		require.Nil(t, reply.Problem)
		require.NotSame(t, old, s.Grant())
		a.takeTurns(t, turns())() // all are free again
	})
}

// sessions returns how many sessions have a slot.
func (a *App) sessions() int {
	var g metrics.Gauges
	a.cfg.Sessions.Gauges(&g)
	return g.Sessions + g.Limits[0].InUse
}

// A session that waits for a slot has no turn meanwhile.
func TestAnOpeningThatWaitsForASlotHasNoTurn(t *testing.T) {
	m := metrics.New("test")
	l := limit.New(limit.Config{Sessions: 1, PendingSessions: 1, Wait: time.Hour}, m)
	a := newApp(t, func(c *Config) {
		c.Limiter, c.Sessions = l, session.NewRegistry(session.Config{Slots: l.Sessions()}, c.Broker, m)
	})
	synctest.Test(t, func(t *testing.T) {
		first, err := a.openSession(t.Context(), Caller{}, bodyOf("{}"))
		require.NoError(t, err)
		var second error
		go func() { _, second = a.openSession(t.Context(), Caller{}, bodyOf(`{"topics":["a.*"]}`)) }()
		synctest.Wait()
		a.takeTurns(t, turns())()
		require.NoError(t, a.CloseSession(t.Context(), Caller{}, first.Session))
		synctest.Wait()
		require.NoError(t, second)
		require.Equal(t, 1, a.sessions())
	})
}

// large returns a Large that has a command, and whether it was read.
func large(command []byte) (l transport.Large, read *bool) {
	read = new(bool)
	return func() ([]byte, error) { *read = true; return command, nil }, read
}

// doLarge returns what carries out a large command.
func doLarge(t *testing.T, d transport.Duplex, command transport.Large) transport.Later {
	t.Helper()
	reply, later, _, err := d.Do(t.Context(), d.Session, transport.Action{Large: command}, nil)
	require.NoError(t, err)
	require.Nil(t, reply)
	return later
}

// A large command waits for its turn before anything is done for it, and so does what it changes.
func TestALargeCommandWaitsForItsTurn(t *testing.T) {
	a := newApp(t)
	synctest.Test(t, func(t *testing.T) {
		d := a.connected(t, "json")
		others := a.takeTurns(t, turns())
		command, read := large([]byte(`{"subscribe":` + named(500) + `,"ref":1}`))
		var finish transport.Finish
		go func() { finish, _ = doLarge(t, d, command)(t.Context()) }()
		synctest.Wait()
		require.False(t, *read)
		others()
		synctest.Wait()
		require.True(t, *read)
		require.False(t, a.cfg.Broker.Has("n1"))
		require.Len(t, finished(finish).Positions, 500)

		others = a.takeTurns(t, turns())
		defer others()
		ctx, leave := context.WithCancel(t.Context())
		command, read = large([]byte(`{"ping":true}`))
		var err error
		go func() {
			finish, _ := doLarge(t, d, command)(ctx)
			_, err = finish()
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, *read)
	})
}

// What a command changes waits for its turn without the output. A client may not read, so a change
// that waits for the output has no slot, and gives its turn to others.
func TestAChangeThatWaitsForTheOutputHasNoTurn(t *testing.T) {
	a := newApp(t)
	synctest.Test(t, func(t *testing.T) {
		inUse := func() (names []string) {
			var g metrics.Gauges
			a.cfg.Limiter.Gauges(&g)
			for _, l := range g.Limits {
				if l.InUse > 0 {
					names = append(names, l.Name)
				}
			}
			return names
		}
		d := a.connected(t, "json")
		for _, free := range []bool{true, false} {
			others := a.takeTurns(t, turns())
			_, later, _, err := d.Do(t.Context(), d.Session, transport.Action{Command: []byte(`{"subscribe":["a.*"],"ref":1}`)}, nil)
			require.NoError(t, err)
			var finish transport.Finish
			var release func()
			go func() { finish, release = later(t.Context()) }()
			synctest.Wait()
			require.Nil(t, finish)
			others()
			synctest.Wait()
			require.Equal(t, []string{"turns"}, inUse())
			var reply *wire.Reply
			if !free {
				release()
				require.Empty(t, inUse())
				others = a.takeTurns(t, turns())
			}
			go func() { reply = finished(finish) }()
			synctest.Wait()
			if !free {
				require.Nil(t, reply)
				others()
				synctest.Wait()
			}
			require.Nil(t, reply.Problem)
			require.Empty(t, inUse())
		}
	})
}

// A client closes its connection right behind a publish, which has to wait for a slot.
func TestAPublishOfAClientThatLeftIsPublished(t *testing.T) {
	m := metrics.New("test")
	a := newApp(t, func(c *Config) { c.Limiter = limit.New(limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Hour}, m) })
	synctest.Test(t, func(t *testing.T) {
		d := a.connected(t, "json")
		others, err := a.cfg.Limiter.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
		ctx, leave := context.WithCancel(t.Context())
		replied := make(chan transport.Finish, 1)
		_, _, giveUp, err := d.Do(ctx, d.Session, transport.Action{Command: []byte(`{"publish":{"topic":"small","data":1}}`)}, func(f transport.Finish) { replied <- f })
		require.NoError(t, err)
		command, _ := large([]byte(`{"publish":{"topic":"large","data":1}}`))
		leave()
		go func() {
			giveUp()
			finished(<-replied)
			finished(doLarge(t, d, command)(ctx))
		}()
		synctest.Wait()
		require.False(t, a.cfg.Broker.Has("small"))
		others.End()
		synctest.Wait()
		require.True(t, a.cfg.Broker.Has("small"))
		require.True(t, a.cfg.Broker.Has("large"))
	})
}

// A large command, which may have been deflated to a few bytes, counts as memory until what it
// changes has had its turn, too. If that is too much for an address, the command is refused.
func TestALargeCommandCountsUntilItsEnd(t *testing.T) {
	a := newApp(t)
	d := a.connected(t, "json")
	held := func() int64 { return a.cfg.Broker.Memory().Of(memory.Unfinished) }
	text := `{"subscribe":` + named(500) + `,"ref":7}` + strings.Repeat(" ", 1<<20+16<<10) // some is free
	var waiting []transport.Finish
	for range memory.DefaultBudget/8>>20 + 2 {
		command, _ := large([]byte(text))
		finish, release := doLarge(t, d, command)(t.Context())
		release()
		waiting = append(waiting, finish)
		require.GreaterOrEqual(t, held(), int64(len(waiting))<<20)
	}
	var first, last *wire.Reply
	for _, finish := range waiting {
		last = finished(finish)
		first = cmp.Or(first, last)
	}
	require.Nil(t, first.Problem)
	require.Equal(t, wire.CodeLimited, last.Problem.Code)
	require.EqualValues(t, 7, *last.Ref)
	require.Zero(t, held())
}

// The rate is asked before a large command is decoded, once, and that of its kind. The client learns
// which command was refused.
func TestARateRefusesALargeCommandBeforeItIsDecoded(t *testing.T) {
	for _, format := range []string{"json", "cbor"} {
		for kind, command := range map[limit.Kind]string{
			limit.Publishes: `{"publish":{"topic":"a","data":1},"ref":7}`,
			limit.Requests:  `{"subscribe":["b"],"ref":7}`,
		} {
			var rates limit.Rates
			rates[kind][limit.Address] = nothing
			l := limit.New(limit.Config{Rates: rates}, metrics.New("test"))
			a := newApp(t, func(c *Config) { c.Limiter = l })
			d := a.connected(t, format)
			do := func(command string) *wire.Reply {
				read, _ := large(encoded(format, command))
				return finished(doLarge(t, d, read)(t.Context()))
			}
			require.Nil(t, do(command).Problem, "%s, %s: it spends the rate once", kind, format)
			wrong := strings.Replace(command, `,"ref"`, `,"unknown":1,"ref"`, 1)
			refused := do(wrong)
			require.Equal(t, wire.CodeLimited, refused.Problem.Code, "%s, %s: it is not decoded", kind, format)
			require.EqualValues(t, 7, *refused.Ref)
			require.Equal(t, wire.CodeLimited, do(command).Problem.Code)
		}
	}
}

// What is no command ends the connection, also if it is large.
func TestALargeCommandThatCannotBeReadEndsTheConnection(t *testing.T) {
	a := newApp(t)
	d := a.connected(t, "json")
	for why, read := range map[string]transport.Large{
		"the command is not an object": func() ([]byte, error) { return []byte("[]"), nil },
		"it cannot be inflated": func() ([]byte, error) {
			return nil, problem.New(wire.CodeInvalidRequest, "", "it cannot be inflated")
		},
		"the call panicked": func() ([]byte, error) { panic("BUG") },
	} {
		finish, _ := doLarge(t, d, read)(t.Context())
		reply, err := finish()
		require.Nil(t, reply)
		require.ErrorContains(t, err, why)
	}
}
