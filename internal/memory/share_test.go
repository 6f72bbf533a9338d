package memory

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A fakeConnection records the order in which connections are cut.
type fakeConnection struct {
	name   string
	cut    *[]string
	client *Client
}

func (c *fakeConnection) Client() *Client { return c.client }

func (c *fakeConnection) CutOff() { *c.cut = append(*c.cut, c.name) }

// waiting has connections for which bytes wait, in an account with a share of 16 MiB.
type waiting struct {
	*testing.T
	account *Account
	cut     []string
	of      map[string]*UnreadBytes
	clients map[string]*Client
}

func newWaiting(t *testing.T) *waiting {
	return &waiting{T: t, account: newFake(64 << 20).account, of: make(map[string]*UnreadBytes), clients: make(map[string]*Client)}
}

// waits sets the bytes that wait on a connection, whose client is at an address.
func (w *waiting) waits(name, address string, own, shared int) {
	if w.clients[address] == nil {
		w.clients[address] = &Client{}
	}
	u := w.of[name]
	if u == nil {
		u = &UnreadBytes{}
		u.Init(w.account, &fakeConnection{name, &w.cut, w.clients[address]})
		w.of[name] = u
	}
	u.Set(own, shared)
}

// wantCut cuts, and checks which connections, in order.
func (w *waiting) wantCut(excess int64, want ...string) {
	w.Helper()
	cut, _ := w.account.cutSlowest(time.Now(), excess)
	require.Equal(w, len(want), cut)
	require.Equal(w, want, slices.Clone(w.cut))
	for _, name := range w.cut {
		w.of[name].Set(0, 0) // as its owner does once it is closed
	}
	w.cut = nil
}

const mib = 1 << 20

func TestUnreadBytesCountAgainstTheirAddress(t *testing.T) {
	w := newWaiting(t)
	w.waits("a", "x", 3*mib, 5*mib)
	w.waits("b", "x", mib, 0)
	require.EqualValues(t, 4*mib, w.account.Of(Unread), "shared bytes count with their message")
	require.EqualValues(t, 4*mib, w.account.Used())
	require.EqualValues(t, 4*mib, w.clients["x"].unread.Load())
	w.waits("a", "x", mib, 5*mib)
	w.waits("b", "x", 0, 0)
	require.EqualValues(t, mib, w.account.Of(Unread))
	require.True(t, w.clients["x"].Holds())
	w.waits("a", "x", 0, 0)
	require.Zero(t, w.account.Of(Unread))
	require.False(t, w.clients["x"].Holds())
	require.Empty(t, w.account.readers)
}

func TestSetWithoutBytesAllocatesNothing(t *testing.T) {
	w := newWaiting(t)
	var u UnreadBytes
	u.Init(w.account, nil)
	require.Zero(t, testing.AllocsPerRun(100, func() { u.Set(0, 0) }))
	require.Empty(t, w.account.readers)
}

// When the share is full, stalled readers are cut first, the largest first, until a
// quarter of it is free.
func TestTheSlowestReadersAreCutFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t)
		w.waits("stalled", "a", 3*mib, 0)
		w.waits("large stalled", "b", 4*mib, 0)
		w.waits("reads", "c", 7*mib, 0)
		time.Sleep(stalledAfter)
		w.waits("reads", "c", 6*mib, 0)
		w.wantCut(0)
		require.Empty(t, w.account.pressed)
		w.waits("new", "d", 4*mib, 0)
		require.Len(t, w.account.pressed, 1, "the watcher is woken")
		w.wantCut(0, "large stalled", "stalled")
		w.wantCut(0)
	})
}

// An address that has more than half of the share is cut. Other slow readers are not.
func TestAnAddressWithTooMuchUnreadIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t)
		w.waits("other", "b", 4*mib, 0)
		time.Sleep(stalledAfter)
		for i := range 9 {
			w.waits(fmt.Sprint(i), "a", mib, 10*(9-i))
		}
		require.Len(t, w.account.pressed, 1)
		w.wantCut(0, "0", "1", "2")
	})
}

// To free memory only stalled readers are cut, also those with shared bytes only.
func TestPressureCutsStalledReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t)
		w.waits("small", "a", 1000, 0)
		w.waits("large", "b", 0, 2*mib)
		time.Sleep(stalledAfter)
		w.waits("reads", "c", 3*mib, 0)
		w.wantCut(mib, "large")
		w.wantCut(mib, "small")
		w.wantCut(mib)
	})
}

// A connection that is cut keeps its bytes until its owner has closed it. It is cut once.
func TestAConnectionIsCutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t)
		w.waits("slow", "a", 1000, 0)
		time.Sleep(stalledAfter)
		cut, freed := w.account.cutSlowest(time.Now(), mib)
		require.Equal(t, 1, cut)
		require.Positive(t, freed)
		cut, freed = w.account.cutSlowest(time.Now(), mib)
		require.Zero(t, cut)
		require.Zero(t, freed)
		require.Equal(t, []string{"slow"}, w.cut)
	})
}

// A list or history is refused to an address with too many unread bytes, and to all when
// the share is full or the pressure is high.
func TestAnswersAreRefusedWhenTheShareIsFull(t *testing.T) {
	w := newWaiting(t)
	require.NoError(t, w.account.AdmitAnswer(nil))
	w.waits("a", "x", 9*mib, 0)
	require.ErrorContains(t, w.account.AdmitAnswer(w.clients["x"]), "your address has reached")
	require.NoError(t, w.account.AdmitAnswer(&Client{}))
	w.waits("b", "y", 8*mib, 0)
	require.ErrorContains(t, w.account.AdmitAnswer(nil), "no memory for another long answer")
	w.waits("b", "y", 0, 0)
	require.NoError(t, w.account.AdmitAnswer(nil))
	w.account.Press(High)
	require.ErrorContains(t, w.account.AdmitAnswer(nil), "no memory for another long answer")
}

// The watcher cuts readers before it trims sessions, and logs their number.
func TestTheWatcherCutsBeforeItTrims(t *testing.T) {
	short(t, func(p *shortProcess) {
		var cut []string
		var u UnreadBytes
		u.Init(p.account, &fakeConnection{"a", &cut, nil})
		p.looks(Calm)
		u.Set(900<<10, 0)
		p.looks(Critical)
		require.Equal(t, []string{"a"}, cut)
		require.Zero(t, p.trimmed)
		logged := p.observed.FilterMessageSnippet("do not read").All()
		require.Len(t, logged, 1)
		require.EqualValues(t, 1, logged[0].ContextMap()["connections"])
		u.Set(0, 0)
		p.looks(Calm)
		p.account.Add(Queues, 900<<10)
		p.looks(Critical)
		require.Equal(t, 1, p.trimmed)
	})
}
