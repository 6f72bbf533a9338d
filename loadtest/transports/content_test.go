package transports

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

var (
	hello = &wire.Hello{Positions: []wire.Position{origin}}
	gap   = &wire.Gap{Topic: origin.Topic, Reason: wire.GapSlow, After: origin, Position: origin}
	end   = &wire.Problem{Title: "gone", Status: 503, Code: wire.CodeDraining}
)

// others are frames that are no messages, and a heartbeat.
var others = map[encoding]struct{ hello, gap, end, heartbeat string }{
	lines: {string(wire.Content{Hello: hello}.AppendJSON(nil)), string(wire.Content{Gap: gap}.AppendJSON(nil)), string(wire.Content{End: end}.AppendJSON(nil)), "\n"},
	items: {string(wire.Content{Hello: hello}.AppendCBOR(nil)), string(wire.Content{Gap: gap}.AppendCBOR(nil)), string(wire.Content{End: end}.AppendCBOR(nil)), "\xf6"},
	events: {
		"retry: 1000\nevent: hello\nid: " + origin.String() + "\ndata: " + string(wire.Content{Hello: hello}.AppendJSON(nil)) + "\n",
		"event: gap\nid: " + origin.String() + "\ndata: " + string(wire.Content{Gap: gap}.AppendJSON(nil)) + "\n",
		"event: end\nretry: 1000\ndata: " + string(wire.Content{End: end}.AppendJSON(nil)) + "\n",
		":\n\n",
	},
}

func newTestContent(e encoding, wanted int) *content {
	return newContent(e, origin, newTally(origin.Offset, wanted))
}

// Whatever pieces it comes in, all of it is read.
func TestContentInPiecesOfAnySize(t *testing.T) {
	const messages = 30
	for e, other := range others {
		whole := other.hello
		for i := range messages {
			whole += string(encoded[e](seen{origin.Offset + uint64(i) + 1, 1_763_757_000_123, i}))
			if i%7 == 0 {
				whole += other.heartbeat
			}
		}
		for size := 1; size < 700; size += 1 + size/9 {
			c := newTestContent(e, messages)
			for from := 0; from < len(whole); from += size {
				require.NoError(t, c.feed([]byte(whole[from:min(from+size, len(whole))])))
			}
			require.NoError(t, c.ended())
			require.True(t, c.hello)
			require.True(t, c.tally.complete(), "%d of size %d", e, size)
			require.Zero(t, c.tally.duplicates+c.tally.disordered)
		}
	}
}

func TestFramesThatMustNotCome(t *testing.T) {
	for e, other := range others {
		c := newTestContent(e, 3)
		require.ErrorIs(t, c.feed([]byte(other.gap)), errLost)
		require.Equal(t, int64(1), c.tally.gaps)
		require.ErrorContains(t, newTestContent(e, 3).feed([]byte(other.end)), "ended the answer")

		c = newTestContent(e, 3)
		require.NoError(t, c.feed([]byte(other.hello[:len(other.hello)-1])))
		require.ErrorContains(t, c.ended(), "within frame")
	}
	for e, nonsense := range map[encoding]string{lines: "{}x\n", items: "\xff", events: "strange: x\n\n"} {
		require.Error(t, newTestContent(e, 3).feed([]byte(nonsense)))
	}
}

// A frame may grow: a message with a member more is read as every client does.
func TestAMessageThatHasMoreThanTheForm(t *testing.T) {
	m := message(seen{origin.Offset + 1, 1_763_757_000_123, 0})
	m.ID = "one"
	for e, b := range map[encoding][]byte{lines: wire.Content{Message: m}.AppendJSON(nil), items: wire.Content{Message: m}.AppendCBOR(nil)} {
		c := newTestContent(e, 1)
		require.NoError(t, c.feed(b))
		require.True(t, c.tally.complete())
	}
}

func TestAMessageThatIsNotTheTests(t *testing.T) {
	foreign := message(seen{origin.Offset + 1, 1_763_757_000_123, 0})
	foreign.Position.Topic = "another"
	changed := message(seen{origin.Offset + 1, 1_763_757_000_123, 0})
	changed.Data = []byte(`["#000000"]`)
	for want, m := range map[string]*wire.Message{"another topic": foreign, "another payload": changed} {
		for e, b := range map[encoding][]byte{lines: wire.Content{Message: m}.AppendJSON(nil), items: wire.Content{Message: m}.AppendCBOR(nil)} {
			require.ErrorContains(t, newTestContent(e, 1).feed(b), want)
		}
	}
}

func TestWhatIsCarriedIsBounded(t *testing.T) {
	c := newTestContent(lines, 1)
	part := make([]byte, 64<<10)
	for i := range part {
		part[i] = 'x'
	}
	var err error
	for range mostCarried/len(part) + 2 {
		if err = c.feed(part); err != nil {
			break
		}
	}
	require.ErrorContains(t, err, "longer than")
}

// Reading must cost far less than sending.
func BenchmarkContent(b *testing.B) {
	for e, name := range map[encoding]string{lines: "lines", items: "items", events: "events"} {
		var whole []byte
		const messages = 1000
		for i := range messages {
			whole = append(whole, encoded[e](seen{origin.Offset + uint64(i) + 1, 1_763_757_000_123, i})...)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := newTestContent(e, messages).feed(whole); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/messages, "ns/message")
		})
	}
}
