package hook

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// asksAt returns an authorize hook that asks the desk's application about topics that match
// the patterns.
func (d *desk) asksAt(keep time.Duration, patterns ...string) *Subscriptions {
	h := NewSubscriptions(AuthorizeConfig{Config: d.cfg, Topics: patterns, Cache: keep}, free{}, d.all, zap.NewNop())
	d.Cleanup(h.Close)
	return h
}

// annTo returns a request of ann to subscribe to names.
func annTo(names ...string) Subscribing {
	s := Subscribing{Principal: Principal{Subject: "ann"}}
	for _, name := range names {
		s.Topics = append(s.Topics, wire.Start{Topic: name})
	}
	return s
}

// The application is asked once about all names of a request that the setting selects.
func TestAnApplicationIsAskedAboutSubscriptions(t *testing.T) {
	d := newDesk(t, Config{})
	d.answers(says(200, "{}"))
	all, chats := d.asksAt(0, ">"), d.asksAt(0, "chat.*", "_presence.>")
	for _, c := range []struct {
		by   *Subscriptions
		s    Subscribing
		want string // empty: not asked
	}{
		{all, annTo("a", "b.*", "c"), `{"type":"authorize","principal":"ann","open":false,"topics":["a","c"],"patterns":["b.*"]}`},
		{all, Subscribing{Principal: Principal{Subject: `"`, Claims: []byte(`{"name":"A <b>"}`)}, Client: "tab", Opens: true, Topics: annTo(">").Topics}, `{"type":"authorize","principal":"\"","claims":{"name":"A <b>"},"client":"tab","open":true,"topics":[],"patterns":[">"]}`},
		{all, Subscribing{Opens: true}, ""}, // without topics
		{all, Subscribing{}, ""},            // only removes topics
		{all, annTo("_presence.a"), ""},
		{chats, annTo("chat.a", "prices.b", "chat.a.b", ">", "*", "_presence.chat.a"), `{"type":"authorize","principal":"ann","open":false,"topics":["chat.a","_presence.chat.a"],"patterns":[">"]}`},
		{chats, annTo("prices.b", "news.>"), ""},
	} {
		d.asked.Store(new(""))
		require.Equal(t, c.want != "", c.by.Selects(c.s.Topics))
		require.NoError(t, c.by.Authorize(t.Context(), c.s))
		require.Equal(t, c.want, strings.TrimSuffix(*d.asked.Load(), "\n"))
	}
	require.Equal(t, 3, called(t, d.all, wire.HookAuthorize, passed))
}

// Two patterns overlap if and only if a topic matches both.
func TestOverlapOfPatterns(t *testing.T) {
	tokens := []string{"a", "b", "_a", "*", ">"}
	random := rand.New(rand.NewPCG(1, 2))
	name := func(of []string) string {
		parts := make([]string, 1+random.IntN(3))
		for i := range parts {
			parts[i] = of[random.IntN(len(of))]
			if parts[i] == ">" {
				return strings.Join(parts[:i+1], ".")
			}
		}
		return strings.Join(parts, ".")
	}
	var topics []string
	for _, a := range tokens[:3] {
		topics = append(topics, a)
		for _, b := range tokens[:3] {
			topics = append(topics, a+"."+b)
			for _, c := range tokens[:3] {
				topics = append(topics, a+"."+b+"."+c)
			}
		}
	}
	for range 5000 {
		x, y, want := name(tokens), name(tokens), false
		for _, topic := range topics {
			want = want || wire.Matches(x, topic) && wire.Matches(y, topic)
		}
		require.Equal(t, want, overlap(x, y), "%s and %s", x, y)
	}
}

func TestAnApplicationRefusesASubscription(t *testing.T) {
	d := newDesk(t, Config{})
	h := d.asksAt(time.Hour, ">")
	for range 2 { // a refusal is not remembered
		d.answers(says(200, `{"refuse":{"detail":"not your room"}}`))
		err := h.Authorize(t.Context(), annTo("a"))
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeForbidden})
		require.ErrorContains(t, err, "not your room")
	}
	require.Equal(t, 2, called(t, d.all, wire.HookAuthorize, refused))
	d.answers(says(204, ""))
	require.NoError(t, h.Authorize(t.Context(), annTo("a")))
}

// Without a valid answer nobody may subscribe.
func TestAnInvalidAnswerAllowsNoSubscription(t *testing.T) {
	d := newDesk(t, Config{})
	h := d.asksAt(time.Hour, ">")
	wrong := []http.HandlerFunc{
		says(500, "{}"), says(200, "ok"), says(200, `{"refused":{}}`), says(200, `{"refuse_topics":["a"]}`), says(200, `{"message":{"data":1}}`),
		says(200, strings.Repeat(" ", 1<<20)),
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	for i, answer := range wrong {
		d.answers(answer)
		wantFailed(t, h.Authorize(t.Context(), annTo("a")))
		require.Equal(t, i+1, called(t, d.all, wire.HookAuthorize, failed))
	}
}

// The same question is not asked again for a while. Another principal, client or topic is
// another question.
func TestAnAgreementIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, m := 0, metrics.New("test")
		cfg := AuthorizeConfig{Config: Config{URL: "http://app/", Secret: secret}, Topics: []string{">"}, Cache: DefaultCache}
		h := NewSubscriptions(cfg, free{}, m, zap.NewNop())
		h.dial = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go consentTo(there, func() { calls++ })
			return here, nil
		}
		defer h.Close()
		wantCalls := func(want int, s Subscribing) {
			t.Helper()
			calls = 0
			require.NoError(t, h.Authorize(t.Context(), s))
			require.NoError(t, h.Authorize(t.Context(), s))
			require.Equal(t, want, calls)
		}
		bob := annTo("a")
		bob.Principal.Subject = "bob"
		tab := annTo("a")
		tab.Client = "tab"
		opens := annTo("a")
		opens.Opens = true
		for _, s := range []Subscribing{annTo("a"), annTo("a", "b"), bob, tab, opens} {
			wantCalls(1, s)
		}
		time.Sleep(DefaultCache - 1)
		wantCalls(0, bob)
		require.NoError(t, h.Authorize(canceled(t), bob), "it does not have to wait")
		time.Sleep(time.Nanosecond)
		require.ErrorIs(t, h.Authorize(canceled(t), bob), context.Canceled)
		wantCalls(1, bob)
		h.Reload(cfg)
		wantCalls(0, bob)
		cfg.Secret = "another secret of 24 bytes or more"
		h.Reload(cfg)
		wantCalls(1, bob)
		cfg.Topics = []string{"a"}
		h.Reload(cfg)
		wantCalls(1, bob)
		cfg.Cache = 0
		h.Reload(cfg)
		wantCalls(2, bob)
		cfg.URL = ""
		h.Reload(cfg)
		wantCalls(0, bob)
		require.Equal(t, 5+2+1+1+2+1+1, called(t, m, wire.HookAuthorize, cached))
	})
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// However many questions there are, memory for them is bounded.
func TestAgreementsAreBounded(t *testing.T) {
	a := &newAbout(AuthorizeConfig{Cache: time.Hour}).agreed
	key := func(n int) (k [32]byte) {
		copy(k[:], fmt.Sprint(n))
		return k
	}
	has := func(n int) bool { _, ok := a.Get(key(n)); return ok }
	const many = 5 * maxAgreed
	for n := range many {
		a.Put(key(n), time.Now(), 1)
		require.True(t, has(n))
		held, _ := a.Held()
		require.LessOrEqual(t, held, 2*maxAgreed)
	}
	require.True(t, has(many-maxAgreed), "the newest stay")
	require.False(t, has(0))
}

// Two requests in flight take the only slots. A third is refused, and nobody is asked.
func TestNoMoreSubscriptionsAreAskedThanSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots, m := make(few, 2), metrics.New("test")
		cfg := AuthorizeConfig{Config: Config{URL: "http://app/", Secret: secret}, Topics: []string{">"}}
		h := NewSubscriptions(cfg, slots, m, zap.NewNop())
		h.dial = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, there) }()
			return here, nil
		}
		defer h.Close()
		over := make(chan error)
		for range 2 {
			go func() { over <- h.Authorize(t.Context(), annTo("a")) }()
		}
		synctest.Wait()
		require.ErrorIs(t, h.Authorize(t.Context(), annTo("a")), &wire.Problem{Code: wire.CodeOverloaded})
		require.Equal(t, 1, called(t, m, wire.HookAuthorize, overloaded))
		for range 2 {
			wantFailed(t, <-over)
		}
		require.Equal(t, 2, called(t, m, wire.HookAuthorize, timeout))
		require.Empty(t, slots)
	})
}

// Without a hook, a request costs nothing.
func TestWithoutAnAuthorizeHookNothingIsAllocated(t *testing.T) {
	h := NewSubscriptions(AuthorizeConfig{Topics: []string{">"}}, free{}, metrics.New("test"), zap.NewNop())
	defer h.Close()
	s, ctx := annTo("a", "b"), t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if h.Selects(s.Topics) || h.Authorize(ctx, s) != nil {
			panic("it asked")
		}
	}))
}
