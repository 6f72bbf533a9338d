package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAPageBeforeAPositionThatTheTopicDoesNotKnow(t *testing.T) {
	b := newBroker(Config{HistoryMessages: 2})
	for range 4 {
		publish(t, b, "a")
	}
	_, ok := b.PageBefore("none", wire.Position{}, 1, time.Now())
	require.False(t, ok)
	for want, before := range map[string]wire.Position{
		"gap(restarted 1-2)": {Topic: "a", Epoch: "another", Offset: 1},
		"gap(restarted 0-2)": {Topic: "a", Epoch: "another"},
		"gap(restarted 9-2)": {Topic: "a", Epoch: b.Epoch("a"), Offset: 9},
	} {
		p, ok := b.PageBefore("a", before, 10, time.Now())
		require.True(t, ok)
		require.Equal(t, want, summary(b.ReadPage(p, p.From, frame.Limit{Frames: 9, Bytes: 1000}, time.Now())), "nothing of another page follows")
	}
	for _, offset := range []uint64{0, 1, 2, 3} {
		p, ok := b.PageBefore("a", wire.Position{Topic: "a", Epoch: b.Epoch("a"), Offset: offset}, 10, time.Now())
		require.True(t, ok)
		require.True(t, p.IsEmpty(), "nothing is held before %d", offset)
	}
}

// The topic reaches a position that was ahead of it before its page is read. The page is not that
// of the position, which would have no bound.
func TestAPageBeforeAPositionThatTheTopicReachesMeanwhile(t *testing.T) {
	b := newBroker(Config{})
	publish(t, b, "a")
	p, ok := b.PageBefore("a", wire.Position{Topic: "a", Epoch: b.Epoch("a"), Offset: 2}, 10, time.Now())
	require.True(t, ok)
	for range 3 {
		publish(t, b, "a")
	}
	require.Equal(t, "gap(restarted 2-0)", summary(b.ReadPage(p, p.From, frame.Limit{Frames: 9, Bytes: 1000}, time.Now())))
}

// While a page is read in pieces, its messages and later ones are lost. The gap ends with the page.
func TestAGapOfAPageEndsWithThePage(t *testing.T) {
	for reason, lose := range map[wire.GapReason]func(b *Broker){
		wire.GapDeleted: func(b *Broker) {
			_, err := b.Delete("a", time.Now())
			require.NoError(t, err)
		},
		wire.GapEvicted: func(b *Broker) {
			for range 9 {
				publish(t, b, "a")
			}
		},
	} {
		b := newBroker(Config{HistoryMessages: 6})
		for range 6 {
			publish(t, b, "a")
		}
		p, ok := b.PageBefore("a", wire.Position{Topic: "a", Epoch: b.Epoch("a"), Offset: 5}, 3, time.Now())
		require.True(t, ok)
		first := b.ReadPage(p, p.From, frame.Limit{Frames: 1, Bytes: 1000}, time.Now())
		require.Equal(t, "2", summary(first))
		lose(b)
		limit := frame.Limit{Frames: 9, Bytes: 1000}
		rest := b.ReadPage(p, first[0].Position(), limit, time.Now())
		require.Equal(t, fmt.Sprintf("gap(%s 2-4)", reason), summary(rest))
		require.Empty(t, b.ReadPage(p, rest[0].Position(), limit, time.Now()), "the page has ended")
	}
}

// Whoever reads backwards page by page gets what a subscription from the oldest page gets, gaps
// included, whatever the size of the pages.
func TestThePagesOfAHistoryAreTheHistory(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			b := newBroker(Config{HistoryMessages: 1 + random.IntN(20)})
			begin(t, b, "e1")
			offset := uint64(0)
			for range random.IntN(40) {
				offset += 1 + random.Uint64N(3)
				switch at := fmt.Sprintf("a@e1:%d", offset); random.IntN(12) {
				case 0:
					loseEntries(t, b, offset)
				case 1:
					apply(t, b, OpDelete, at)
				case 2:
					time.Sleep(time.Second)
				case 3, 4, 5:
					e := Entry{Op: OpPublish, TTL: time.Second, Message: &wire.Message{
						Position: wire.Position{Topic: "a", Epoch: "e1", Offset: offset}, Data: []byte("1"), Time: time.Now().UnixMilli(),
					}}
					_, err := b.Apply(e)
					require.NoError(t, err)
				default:
					apply(t, b, OpPublish, at)
				}
			}
			all := frame.Limit{Frames: 1000, Bytes: 1 << 20}
			var pages []*frame.Frame
			var before, oldest wire.Position
			for {
				p, ok := b.PageBefore("a", before, 1+random.IntN(4), time.Now())
				if !ok || p.IsEmpty() {
					break
				}
				frames := b.ReadPage(p, p.From, all, time.Now())
				require.NotEmpty(t, frames)
				require.Nil(t, frames[0].Gap(), "a page begins with a message")
				pages = append(frames, pages...)
				before, oldest = frames[0].Position(), p.From
			}
			if oldest == (wire.Position{}) {
				return
			}
			history, _ := b.ReadTopic(wire.StartAfter(oldest), all, time.Now())
			require.Equal(t, summary(history), summary(pages), "seed %d", seed)
			whole, _ := b.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, all, time.Now())
			require.Equal(t, messagesIn(whole), messagesIn(pages), "seed %d", seed)
		})
	}
}

// messagesIn counts the messages among frames.
func messagesIn(frames []*frame.Frame) (n int) {
	for _, f := range frames {
		if f.Gap() == nil {
			n++
		}
	}
	return n
}

// A subscription begins after the position of done, which is From of an empty page.
func TestAnEmptyPageOfTheNewestEndsAtTheNewestPosition(t *testing.T) {
	b := newBroker(Config{})
	publish(t, b, "a")
	_, err := b.Delete("a", time.Now())
	require.NoError(t, err)
	p, ok := b.PageBefore("a", wire.Position{}, 10, time.Now())
	require.True(t, ok)
	require.True(t, p.IsEmpty())
	require.EqualValues(t, 2, p.From.Offset)
	state, ok := b.Topic("a")
	require.True(t, ok)
	require.Equal(t, state.Position, p.From)
}
