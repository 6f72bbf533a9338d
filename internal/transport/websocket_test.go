package transport

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Bits of a frame's first byte.
const (
	fin  = 0x80
	rsv1 = 0x40

	text, binaryKind, continued, closing, ping, pong = 1, 2, 0, 8, 9, 10
)

// frameOf returns a frame as clients send it, with a mask that depends on its length.
func frameOf(first byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n <= 125:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	mask := []byte{0xde, 0xad, byte(len(payload)), 0x01}
	b = append(b, mask...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i%4])
	}
	return b
}

func join(frames ...[]byte) []byte { return slices.Concat(frames...) }

// deflated returns text as a client sends it compressed (RFC 7692, section 7.2.1).
func deflated(text string) string {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\x00\x00\xff\xff")
}

// diverse returns a text of n bytes that deflates to a fraction of them.
func diverse(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "topic.%d ", i)
	}
	return b.String()[:n]
}

func TestAWebSocketIsRead(t *testing.T) {
	long := strings.Repeat("long ", 200)
	longer := strings.Repeat("x", 70_000)
	closed := string([]byte{fin | closing, 2, 0x03, 0xe8})
	for name, story := range map[string]struct {
		of   func() *Conversation
		b    []byte
		want heard
	}{
		"one command":             {newTextSocket, frameOf(fin|text, `{"ping":true}`), heard{commands: []string{`{"ping":true}`}}},
		"an empty one":            {newTextSocket, frameOf(fin|text, ""), heard{commands: []string{""}}},
		"several, of all lengths": {newTextSocket, join(frameOf(fin|text, "a"), frameOf(fin|text, long), frameOf(fin|text, longer), frameOf(fin|text, "ü")), heard{commands: []string{"a", long, longer, "ü"}}},
		"binary":                  {newBinarySocket, frameOf(fin|binaryKind, "\xff\x00"), heard{commands: []string{"\xff\x00"}}},
		"in fragments": {newTextSocket, join(frameOf(text, "ab"), frameOf(continued, ""), frameOf(continued, "\xc3"), frameOf(fin|continued, "\xbc!"), frameOf(fin|text, "next")),
			heard{commands: []string{"abü!", "next"}}},
		"pings between fragments": {newTextSocket, join(frameOf(text, "ab"), frameOf(fin|ping, "1"), frameOf(fin|pong, "late"), frameOf(continued, "cd"), frameOf(fin|ping, ""), frameOf(fin|continued, "ef")),
			heard{commands: []string{"abcdef"}, answers: "\x8a\x011\x8a\x00"}},
		"a close, and nothing behind it": {newTextSocket, join(frameOf(fin|closing, "\x03\xe8bye"), frameOf(fin|text, "too late")), heard{answers: closed, closed: true}},
		"a close without a code":         {newTextSocket, frameOf(fin|closing, ""), heard{answers: "\x88\x00", closed: true}},
		"a close between fragments":      {newTextSocket, join(frameOf(text, "ab"), frameOf(fin|closing, "\x0f\xa0")), heard{answers: "\x88\x02\x0f\xa0", closed: true}},
		"deflated":                       {newInflatingSocket, join(frameOf(fin|rsv1|text, deflated(long)), frameOf(fin|text, "plain"), frameOf(fin|rsv1|text, deflated("again"))), heard{commands: []string{long, "plain", "again"}}},
		"deflated in fragments": {newInflatingSocket, join(frameOf(rsv1|text, deflated(long)[:5]), frameOf(fin|ping, "?"), frameOf(fin|continued, deflated(long)[5:])),
			heard{commands: []string{long}, answers: "\x8a\x01?"}},
		// The examples of RFC 7692, section 7.2.3.
		"in a stored block":               {newInflatingSocket, frameOf(fin|rsv1|text, "\x00\x05\x00\xfa\xffHello\x00"), heard{commands: []string{"Hello"}}},
		"in a final block":                {newInflatingSocket, frameOf(fin|rsv1|text, "\xf3\x48\xcd\xc9\xc9\x07\x00\x00"), heard{commands: []string{"Hello"}}},
		"in two blocks":                   {newInflatingSocket, frameOf(fin|rsv1|text, "\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00"), heard{commands: []string{"Hello"}}},
		"in a final block, and then more": {newInflatingSocket, frameOf(fin|rsv1|text, "\xf3\x48\xcd\xc9\xc9\x07\x00"+deflated(" again")), heard{commands: []string{"Hello again"}}},
		"behind empty final blocks":       {newInflatingSocket, frameOf(fin|rsv1|text, strings.Repeat("\x03\x00", 1000)+deflated("a")), heard{commands: []string{"a"}}},
		"deflated and empty":              {newInflatingSocket, frameOf(fin|rsv1|text, "\x00"), heard{commands: []string{""}}},
		"the largest":                     {newTextSocket, frameOf(fin|text, strings.Repeat(" ", mostCommand)), heard{commands: []string{strings.Repeat(" ", mostCommand)}}},

		"a message of the other kind":        {newTextSocket, frameOf(fin|binaryKind, "{}"), heard{code: wire.CodeInvalidRequest, status: 1003}},
		"text where binary is meant":         {newBinarySocket, frameOf(fin|text, "{}"), heard{code: wire.CodeInvalidRequest, status: 1003}},
		"invalid UTF-8":                      {newTextSocket, frameOf(fin|text, "\xff"), heard{code: wire.CodeInvalidRequest, status: 1007}},
		"half a character at the end":        {newTextSocket, join(frameOf(text, "a"), frameOf(fin|continued, "\xc3")), heard{code: wire.CodeInvalidRequest, status: 1007}},
		"invalid UTF-8 when inflated":        {newInflatingSocket, frameOf(fin|rsv1|text, deflated("\xff")), heard{code: wire.CodeInvalidRequest, status: 1007}},
		"unmasked":                           {newTextSocket, []byte("\x81\x02{}"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"compressed, but not negotiated":     {newTextSocket, frameOf(fin|rsv1|text, deflated("a")), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"another reserved bit":               {newTextSocket, frameOf(fin|0x20|text, "a"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"another, with compression":          {newInflatingSocket, frameOf(fin|0x10|text, "a"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"a compressed ping":                  {newInflatingSocket, frameOf(fin|rsv1|ping, "a"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"compression begins in the middle":   {newInflatingSocket, join(frameOf(text, "a"), frameOf(fin|rsv1|continued, "b")), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"a ping in fragments":                {newTextSocket, frameOf(ping, "a"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"a long ping":                        {newTextSocket, frameOf(fin|ping, strings.Repeat("x", 126)), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"an unknown opcode":                  {newTextSocket, frameOf(fin|3, "a"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"an unknown control opcode":          {newTextSocket, frameOf(fin|11, "a"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"a continuation without a message":   {newTextSocket, frameOf(fin|continued, "a"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"a message within another":           {newTextSocket, join(frameOf(text, "a"), frameOf(fin|text, "b")), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"half a close code":                  {newTextSocket, frameOf(fin|closing, "\x03"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"a close code that must not be sent": {newTextSocket, frameOf(fin|closing, "\x03\xed"), heard{code: wire.CodeInvalidRequest, status: 1002}}, // 1005
		"a close reason in invalid UTF-8":    {newTextSocket, frameOf(fin|closing, "\x03\xe8\xff"), heard{code: wire.CodeInvalidRequest, status: 1007}},
		"bytes that cannot be inflated":      {newInflatingSocket, frameOf(fin|rsv1|text, "\x07nonsense"), heard{code: wire.CodeInvalidRequest, status: 1007}},
		"nonsense behind a final block":      {newInflatingSocket, frameOf(fin|rsv1|text, "\x03\x00\x07nonsense"), heard{code: wire.CodeInvalidRequest, status: 1007}},
		"a bomb of final blocks":             {newInflatingSocket, frameOf(fin|rsv1|text, strings.Repeat("\x03\x00", 1000)+deflated(strings.Repeat("x", 2<<20))), heard{code: wire.CodeMessageTooLarge, status: 1009}},
		"too large":                          {newTextSocket, frameOf(fin|text, strings.Repeat("x", mostCommand+1)), heard{code: wire.CodeMessageTooLarge, status: 1009}},
		"too large in fragments":             {newTextSocket, join(frameOf(text, strings.Repeat("x", mostCommand)), frameOf(fin|continued, "x")), heard{code: wire.CodeMessageTooLarge, status: 1009}},
		"a huge length":                      {newTextSocket, []byte("\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"), heard{code: wire.CodeMessageTooLarge, status: 1009}},
		"a length with its highest bit":      {newTextSocket, []byte("\x81\xff\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"2 bytes for a length that needs 1":  {newTextSocket, []byte("\x81\xfe\x00\x02\x00\x00\x00\x00{}"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"2 bytes for the length of a ping":   {newTextSocket, []byte("\x89\xfe\x00\x7d\x00\x00\x00\x00"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"8 bytes for a length that needs 2":  {newTextSocket, []byte("\x81\xff\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x00\x00"), heard{code: wire.CodeInvalidRequest, status: 1002}},
		"a bomb":                             {newInflatingSocket, frameOf(fin|rsv1|text, deflated(strings.Repeat("x", 2<<20))), heard{code: wire.CodeMessageTooLarge, status: 1009}},
		"a small bomb":                       {newInflatingSocket, frameOf(fin|rsv1|text, deflated(strings.Repeat("x", mostCommand))), heard{code: wire.CodeMessageTooLarge, status: 1009}},
		"one that is just small enough":      {newInflatingSocket, frameOf(fin|rsv1|text, deflated(strings.Repeat("x", 128<<10))), heard{commands: []string{strings.Repeat("x", 128<<10)}}},
		"one with many deflated bytes":       {newInflatingSocket, frameOf(fin|rsv1|text, deflated(diverse(mostCommand))), heard{commands: []string{diverse(mostCommand)}}},
	} {
		t.Run(name, func(t *testing.T) {
			large := func(b string) bool { return len(b) > 10_000 }
			if large(string(story.b)) || slices.ContainsFunc(story.want.commands, large) { // only small ones are cut everywhere
				require.Equal(t, story.want, hear(t, story.of(), story.b, inChunks))
				require.Equal(t, story.want, hear(t, story.of(), story.b, whole))
				return
			}
			wantsHeard(t, story.of, story.b, story.want)
		})
	}
}

// A client must read the answers to its pings. The server keeps nothing of them.
func TestManyPingsLeaveNothingBehind(t *testing.T) {
	s := newTextSocket()
	one := frameOf(fin|ping, strings.Repeat("p", 125))
	h := hear(t, s, bytes.Repeat(one, 10_000), inChunks)
	require.Len(t, h.answers, 10_000*127)
	require.LessOrEqual(t, cap(s.reader.(*socket).control), 256)
	require.Empty(t, s.reader.(*socket).message)
}

// Pings are answered in one write: with a write for each pong a client could keep a core
// busy with a few Mbit/s.
func TestPingsAreAnsweredTogether(t *testing.T) {
	s := newTextSocket()
	small := join(frameOf(fin|ping, ""), frameOf(fin|pong, ""), frameOf(text, ""), frameOf(continued, ""), frameOf(fin|ping, "p"))
	n, a := s.Receive(join(small, frameOf(fin|continued, "x"), frameOf(fin|ping, "")), opened)
	require.Equal(t, len(small), n, "a command ends the batch")
	require.Equal(t, "\x8a\x00\x8a\x01p", string(a.Write))
	n, a = s.Receive(join(frameOf(fin|continued, "x"), frameOf(fin|ping, "")), opened)
	require.Equal(t, len(frameOf(fin|continued, "x")), n)
	require.Equal(t, "x", string(a.Command))
}

// Nothing behind a large command is read before its reply: pings are answered then, and the begin of
// the next message does not replace the command.
func TestWhatFollowsALargeCommandWaits(t *testing.T) {
	large := `"` + strings.Repeat("x", largeCommand) + `"`
	for _, command := range [][]byte{frameOf(fin|text, large), frameOf(fin|rsv1|text, deflated(large))} {
		c := newInflatingSocket()
		h := hear(t, c, join(command, frameOf(fin|ping, "1"), frameOf(text, strings.Repeat("y", 1000)), frameOf(fin|continued, "z")), whole)
		require.Equal(t, []string{large, strings.Repeat("y", 1000) + "z"}, h.commands)
		require.Equal(t, string([]byte{fin | pong, 1, '1'}), h.answers)
	}
}

// Memory grows with the bytes that arrive, not with the announced length.
func TestAnAnnouncedCommandTakesNoMemory(t *testing.T) {
	begin := frameOf(text, strings.Repeat("x", mostCommand))[:20]
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var talks []*Conversation
	for range 100 {
		c := newTextSocket()
		hear(t, c, begin, whole)
		talks = append(talks, c)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	runtime.KeepAlive(talks)
}

// A connection does not keep the memory of a large command.
func TestTheMemoryOfALargeCommandIsFreed(t *testing.T) {
	s := newTextSocket()
	hear(t, s, join(frameOf(fin|text, strings.Repeat("x", 1<<20)), frameOf(fin|text, "{}")), inChunks)
	require.LessOrEqual(t, cap(s.reader.(*socket).message), keptMessage)
}

// Each problem that ends a session has its close code.
func TestTheCloseFrameOfAWebSocket(t *testing.T) {
	for code, status := range map[wire.Code]ws.StatusCode{
		wire.CodeDraining: 1001, wire.CodeSessionEnded: 1000, wire.CodePollReplaced: 1008, wire.CodeInvalidRequest: 1008,
		wire.CodeMessageTooLarge: 1009, wire.CodeInternal: 1011, wire.CodeOverloaded: 1013,
	} {
		bye := appendClose(nil, &wire.Problem{Code: code}, code)
		require.Equal(t, []byte{fin | closing, byte(len(bye) - 2)}, bye[:2], "whole, and not masked")
		got, reason := ws.ParseCloseFrameData(bye[2:])
		require.Equal(t, status, got, code)
		require.Equal(t, string(code), reason)
	}
}

// Inflaters are shared, but a message cannot refer to the one before.
func TestAMessageHasAWindowOfItsOwn(t *testing.T) {
	const repeated = "\x02\x02\x00\x00" // 3 times the byte before the message, in fixed codes (RFC 1951, section 3.2.6)
	h := hear(t, newInflatingSocket(), join(frameOf(fin|rsv1|text, deflated("secret")), frameOf(fin|rsv1|text, repeated)), whole)
	require.Equal(t, heard{commands: []string{"secret"}, code: wire.CodeInvalidRequest, status: 1007}, h)
	h = hear(t, newInflatingSocket(), frameOf(fin|rsv1|text, deflated("the next")), whole)
	require.Equal(t, heard{commands: []string{"the next"}}, h, "an error ends with its message, too")
}

// A client may send the close codes that are registered or free, and no other (RFC 6455, section 7.4).
func TestAClientMaySendTheRegisteredCloseCodes(t *testing.T) {
	for _, codes := range []struct {
		first, last int
		may         bool
	}{
		{0, 999, false}, {1000, 1003, true}, {1004, 1006, false}, {1007, 1014, true}, {1015, 2999, false}, {3000, 4999, true}, {5000, 65535, false},
	} {
		for _, code := range []int{codes.first, codes.last} {
			body := string([]byte{byte(code >> 8), byte(code)})
			want := heard{answers: "\x88\x02" + body, closed: true}
			if !codes.may {
				want = heard{code: wire.CodeInvalidRequest, status: 1002}
			}
			require.Equal(t, want, hear(t, newTextSocket(), frameOf(fin|closing, body+"why"), whole), code)
		}
	}
}

// An error says what is wrong: the command, or the code or the reason of a close frame.
func TestWhatIsInvalidIsNamed(t *testing.T) {
	for of, b := range map[string][]byte{
		"the command is not valid UTF-8": frameOf(fin|text, "\xff"), "the reason of the close frame is not valid UTF-8": frameOf(fin|closing, "\x03\xe8\xff"),
		"has half a code": frameOf(fin|closing, "\x03"), "no client may send the close code 1005": frameOf(fin|closing, "\x03\xed\xff"),
	} {
		_, a := newTextSocket().Receive(b, opened)
		require.Contains(t, string(a.Write), of)
	}
}

// A loop reads a command of at most largeCommand bytes. It neither inflates nor checks a longer one.
func TestALoopReadsSmallCommandsOnly(t *testing.T) {
	wrong := strings.Repeat("\xff", largeCommand+1)
	item := func(n int) []byte { // a text string of n bytes, with its head
		return append(binary.BigEndian.AppendUint16([]byte{0x79}, uint16(n-3)), diverse(n-3)...)
	}
	for name, story := range map[string]struct {
		of    func() *Conversation
		b     []byte
		large bool
		err   error
	}{
		"as long as it may be":          {newTextSocket, frameOf(fin|text, diverse(largeCommand)), false, nil},
		"longer":                        {newTextSocket, frameOf(fin|text, diverse(largeCommand+1)), true, nil},
		"longer, and not UTF-8":         {newTextSocket, frameOf(fin|text, wrong), true, &wire.Problem{Code: wire.CodeInvalidRequest}},
		"inflates to as long":           {newInflatingSocket, frameOf(fin|rsv1|text, deflated(diverse(largeCommand))), false, nil},
		"inflates to longer":            {newInflatingSocket, frameOf(fin|rsv1|text, deflated(diverse(largeCommand+1))), true, nil},
		"inflates to too many":          {newInflatingSocket, frameOf(fin|rsv1|text, deflated(strings.Repeat("x", mostCommand))), true, &wire.Problem{Code: wire.CodeMessageTooLarge}},
		"deflated as long as it may be": {newInflatingSocket, frameOf(fin|rsv1|text, strings.Repeat("\x03\x00", largeDeflated/2)), false, nil},
		"is deflated, and longer":       {newInflatingSocket, frameOf(fin|rsv1|text, strings.Repeat("x", largeDeflated+1)), true, &wire.Problem{Code: wire.CodeInvalidRequest}},
		"an item as long as it may be":  {newTCP, item(largeCommand), false, nil},
		"a longer item":                 {newTCP, item(largeCommand + 1), true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := story.of()
			_, a := c.Receive(story.b, opened)
			require.Equal(t, story.large, a.Large != nil)
			require.Equal(t, !story.large, a.Command != nil)
			require.True(t, c.Busy())
			n, other := c.Receive(story.b, opened)
			require.Zero(t, n, "the next one waits")
			require.Zero(t, other)
			if story.large {
				command, err := a.Large()
				require.ErrorIs(t, err, story.err)
				require.Equal(t, story.err == nil, len(command) == largeCommand+1)
			}
		})
	}
}

// A message may inflate to 32 times its bytes, and the free ones.
func TestAMessageInflatesToWhatItHasEarned(t *testing.T) {
	const free = 128 << 10
	line := func(i, n int) string { return fmt.Sprintf("topic.%d ", i) + strings.Repeat("x", n) }
	for n, want := range map[int]heard{80: {commands: []string{""}}, 160: {code: wire.CodeMessageTooLarge, status: 1009}} {
		var b strings.Builder
		for i := 0; b.Len() < mostCommand-400; i++ {
			b.WriteString(line(i, n))
		}
		message := deflated(b.String())
		times := float64(b.Len()-free) / float64(len(message))
		require.Equal(t, want.code == "", times <= 32, times)
		require.InDelta(t, 32, times, 25, "near the bound")
		if want.code == "" {
			want.commands[0] = b.String()
		}
		require.Equal(t, want, hear(t, newInflatingSocket(), frameOf(fin|rsv1|text, message), whole))
	}
}
