package transport

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestASequenceIsRead(t *testing.T) {
	items := []string{
		"\x00", "\x17", "\x18\x18", "\x19\xff\xff", "\x1a\x00\x00\x00\x01", "\x1b\xff\xff\xff\xff\xff\xff\xff\xff", // unsigned
		"\x20", "\x3b\xff\xff\xff\xff\xff\xff\xff\xff", // negative
		"\x40", "\x43abc", "\x58\x1e" + strings.Repeat("b", 30), "\x5f\x41a\x42bc\xff", "\x5f\xff", // bytes
		"\x60", "\x63abc", "\x79\x01\x2c" + strings.Repeat("t", 300), "\x7f\x61a\x60\xff", // text
		"\x80", "\x83\x01\x81\x02\x40", "\x9f\x01\x9f\xff\xff", // arrays
		"\xa0", "\xa1\x61a\xa1\x61b\xf6", "\xbf\x61a\x01\xff", // maps
		"\xc0\x61a", "\xd8\x20\x61u", "\xd9\x01\x06\x44null", // tags
		"\xf4", "\xf5", "\xf7", "\xf8\xff", "\xf9\x00\x00", "\xfa\x00\x00\x00\x00", "\xfb\x00\x00\x00\x00\x00\x00\x00\x00", // simple
	}
	for _, item := range items {
		wantsHeard(t, newTCP, []byte(item), heard{commands: []string{item}})
		require.NoError(t, cbor.Wellformed([]byte(item)), "%x", item)
		wantsHeard(t, newTCP, []byte("\xf6"+item+"\xf6\xf6"+item+item), heard{commands: []string{item, item, item}})
	}
	wantsHeard(t, newTCP, []byte(strings.Join(items, "")), heard{commands: items})
}

// null is a heartbeat. It is no command and costs nothing.
func TestHeartbeatsOfASequence(t *testing.T) {
	s := newTCP()
	require.Equal(t, heard{}, hear(t, s, bytes.Repeat([]byte{0xf6}, 100_000), inChunks))
	require.LessOrEqual(t, cap(s.reader.(*sequence).item), keptMessage)
	n, a := s.Receive(bytes.Repeat([]byte{0xf6}, readBytes), opened)
	require.Zero(t, a)
	require.Equal(t, readBytes, n, "one after the other they cost a core, and no limit counts them")
}

func TestInvalidBytesEndASequence(t *testing.T) {
	large := strings.Repeat("x", mostCommand)
	for name, story := range map[string]struct {
		b    string
		code wire.Code
	}{
		"a reserved length":                 {"\x1c", wire.CodeInvalidRequest},
		"another":                           {"\x5e", wire.CodeInvalidRequest},
		"a break of nothing":                {"\xff", wire.CodeInvalidRequest},
		"a break in what has a length":      {"\x82\x01\xff", wire.CodeInvalidRequest},
		"a number without end":              {"\x1f", wire.CodeInvalidRequest},
		"a tag without end":                 {"\xdf\x01", wire.CodeInvalidRequest},
		"nested arrays":                     {strings.Repeat("\x81", 10_000), wire.CodeInvalidRequest},
		"nested arrays without end":         {strings.Repeat("\x9f", 10_000), wire.CodeInvalidRequest},
		"nested tags":                       {strings.Repeat("\xc0", 10_000), wire.CodeInvalidRequest},
		"too large":                         {"\x7a\x00\x11\x00\x00" + large, wire.CodeMessageTooLarge},
		"too large in parts":                {"\x7f" + strings.Repeat("\x79\xff\xff"+large[:0xffff], 17), wire.CodeMessageTooLarge},
		"too many members":                  {"\x9f" + strings.Repeat("\x00", mostCommand), wire.CodeMessageTooLarge},
		"announced, and never to be":        {"\x7a\x7f\xff\xff\xff" + large, ""},
		"announced beyond reason":           {"\x7b\x80\x00\x00\x00\x00\x00\x00\x00", ""},
		"members announced beyond reason":   {"\x9b\xff\xff\xff\xff\xff\xff\xff\xff" + strings.Repeat("\x00", mostCommand), ""},
		"pairs announced beyond reason":     {"\xbb\xff\xff\xff\xff\xff\xff\xff\xff" + strings.Repeat("\x00", mostCommand), ""},
		"pairs announced beyond 64 bits":    {"\xbb\x80\x00\x00\x00\x00\x00\x00\x00" + strings.Repeat("\x00", mostCommand), ""},
		"what is to be UTF-8 is not judged": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := hear(t, newTCP(), []byte(story.b), inChunks)
			require.Empty(t, got.commands)
			if story.code != "" || story.b == "" {
				require.Equal(t, story.code, got.code)
			} else {
				require.Contains(t, []wire.Code{wire.CodeInvalidRequest, wire.CodeMessageTooLarge}, got.code)
			}
		})
	}
}

// A command that arrives byte by byte is scanned once. Scanning it again for each byte
// would be 30,000 times the work, which takes minutes.
func TestACommandByteByByteIsScannedOnce(t *testing.T) {
	const most = 1<<20 - 5
	item := "\x5a\x00\x0f\xff\xfb" + strings.Repeat("x", most) // one long string
	list := "\x9f" + strings.Repeat("\x61a", 1<<19-1) + "\xff" // many small items
	for _, b := range []string{item, list} {
		begun := time.Now()
		got := hear(t, newTCP(), []byte(b), func() int { return 16 })
		require.Len(t, got.commands, 1)
		require.Less(t, time.Since(begun), time.Minute)
	}
}

// Several small commands arrive in one read.
func TestSmallCommandsTogether(t *testing.T) {
	s := newTCP()
	got := hear(t, s, bytes.Repeat([]byte("\xa1\x64ping\xf5"), 10_000), func() int { return 1000 })
	require.Len(t, got.commands, 10_000)
	require.LessOrEqual(t, cap(s.reader.(*sequence).item), keptMessage)
}

// others is another implementation, with its most generous limits.
var others = func() cbor.DecMode {
	mode, err := cbor.DecOptions{MaxNestedLevels: 1000, MaxArrayElements: math.MaxInt32, MaxMapPairs: math.MaxInt32}.DecMode()
	if err != nil {
		panic(err)
	}
	return mode
}()

func FuzzSequence(f *testing.F) {
	f.Add([]byte("\xa1\x64ping\xf5\xf6\x83\x01\x02\x03"), uint64(1))
	f.Add([]byte("\x9f\x5f\x41a\xff\xbf\x61a\xc0\x00\xff\xff"), uint64(2))
	f.Add([]byte("\xbb\xff\xff\xff\xff\xff\xff\xff\xff"), uint64(3))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		want := hear(t, newTCP(), b, whole)
		wantsHeardInParts(t, newTCP, b, want, seed)
		rest := b
		for _, command := range want.commands {
			for bytes.HasPrefix(rest, []byte{0xf6}) {
				rest = rest[1:]
			}
			require.True(t, bytes.HasPrefix(rest, []byte(command)))
			var item cbor.RawMessage
			if _, err := others.UnmarshalFirst(rest, &item); err != nil {
				return // it checks more than where items end
			}
			require.Equal(t, []byte(item), []byte(command))
			rest = rest[len(command):]
		}
	})
}
