package transports

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

var origin = wire.Position{Topic: "loadtest.abc.t0001", Epoch: "mi8k2c3d4e5f", Offset: 7}

// message is one of the test's, as the daemon has it.
func message(m seen) *wire.Message {
	before, after := loadtest.ShortStrings()
	p := origin
	p.Offset = m.offset
	return &wire.Message{Position: p, Time: int64(m.time), Data: []byte(before + string(appendPadded(nil, uint64(m.sequence), loadtest.SequenceDigits)) + after)}
}

// encoded is how the daemon writes it.
var encoded = map[encoding]func(m seen) []byte{
	lines: func(m seen) []byte { return wire.Content{Message: message(m)}.AppendJSON(nil) },
	items: func(m seen) []byte { return wire.Content{Message: message(m)}.AppendCBOR(nil) },
	events: func(m seen) []byte {
		w := message(m)
		return []byte("id: " + w.Position.String() + "\ndata: " + string(wire.Content{Message: w}.AppendJSON(nil)) + "\n")
	},
}

var forms = map[encoding]form{lines: lineForm(origin), items: itemForm(origin), events: eventForm(origin)}

// What is compared with is what the daemon sends, for every length of an offset.
func TestFormsAreWhatTheDaemonWrites(t *testing.T) {
	for e, f := range forms {
		for _, offset := range []uint64{1, 9, 23, 24, 99, 255, 256, 65_535, 65_536, 200_000, 1<<32 - 1, 1 << 32, 1<<53 - 1} {
			want := seen{offset: offset, time: 1_763_757_000_123, sequence: int(offset % 1_000_000)}
			bytes := encoded[e](want)
			require.Equal(t, string(bytes), string(f.append(nil, want)))
			got, n := f.match(append(bytes, "more"...))
			require.Equal(t, len(bytes), n)
			require.Equal(t, want, got)
			for cut := range bytes {
				_, n := f.match(bytes[:cut])
				require.Equal(t, incomplete, n, "%d: %q", e, bytes[:cut])
			}
		}
	}
}

// A byte that is not as it must be is never taken for a message.
func TestAnyOtherByteIsSeen(t *testing.T) {
	want := seen{offset: 123_456, time: 1_763_757_000_123, sequence: 17}
	for e, f := range forms {
		whole := encoded[e](want)
		for i := range whole {
			other := append([]byte{}, whole...)
			other[i] ^= 0x80
			got, n := f.match(other)
			if n == len(whole) {
				require.Equal(t, items, e, "%q", other)
				require.NotEqual(t, want, got, "a number, and read as what it is")
			}
		}
	}
}

func TestNumbersThatAreWrittenOtherwise(t *testing.T) {
	position := `{"position":"` + origin.Topic + "@" + origin.Epoch + ":"
	for _, line := range []string{"07", "-7", "", `"`, strings.Repeat("1", 17)} {
		_, n := forms[lines].match([]byte(position + line + `","time":1763757000123,"data":["#`))
		require.Equal(t, different, n, line)
	}
	for _, head := range []string{"\x18\x17", "\x19\x00\xff", "\x1a\x00\x00\xff\xff", "\x1b\x00\x00\x00\x00\xff\xff\xff\xff", "\x1c", "\x1f", "\x20"} {
		_, n := readUnsigned([]byte(head))
		require.Equal(t, different, n, "%x", head)
	}
}

// Two places say the position of an event.
func TestAnEventWhosePlacesDiffer(t *testing.T) {
	event := strings.Replace(string(encoded[events](seen{18, 1_763_757_000_123, 3})), ":18\n", ":19\n", 1)
	_, n := forms[events].match([]byte(event))
	require.Equal(t, different, n)
}

func FuzzMatch(f *testing.F) {
	for _, write := range encoded {
		f.Add(write(seen{65_536, 1_763_757_000_123, 999_999}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, form := range forms {
			if m, n := form.match(b); n > 0 {
				require.Equal(t, string(b[:n]), string(form.append(nil, m)))
			}
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	for e, name := range map[encoding]string{lines: "line", items: "item", events: "event"} {
		b.Run(name, func(b *testing.B) {
			bytes := encoded[e](seen{123_456, 1_763_757_000_123, 17})
			for b.Loop() {
				forms[e].match(bytes)
			}
		})
	}
}
