package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// opened is the time at which the conversations of the tests begin.
var opened = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var account = memory.New(memory.DefaultBudget, nil, metrics.New("test"))

// A client is one address. It implements memory.Owner.
type client struct{ holds memory.Client }

func (c *client) Client() *memory.Client { return &c.holds }
func (c *client) CutOff()                {}

// aServer has the default time-outs, and messages of at most 64 KiB.
var aServer = New(Config{}, wire.Limits{MessageBytes: 64 << 10}, account, metrics.New("test"), nil)

func newTextSocket() *Conversation {
	return aServer.NewWebSocket(frame.NDJSON, false, &client{}, opened)
}

func newBinarySocket() *Conversation {
	return aServer.NewWebSocket(frame.CBOR, false, &client{}, opened)
}

func newInflatingSocket() *Conversation {
	return aServer.NewWebSocket(frame.NDJSON, true, &client{}, opened)
}

// newTCP returns the conversation of a TCP connection after its first item.
func newTCP() *Conversation {
	c := aServer.NewTCP(&client{}, opened)
	c.Opened(opened)
	return c
}

// mostCommand is the limit of the conversations above.
var mostCommand = MostBytes(64 << 10)

// heard collects the Actions of a Conversation for some bytes.
type heard struct {
	commands []string
	answers  string    // one after the other
	closed   bool      // by the client
	code     wire.Code // of the problem that ended it; empty: none
	status   int       // of the close frame behind that problem; 0: none
}

// hear has c receive b in parts of the given sizes. Bytes that c did not take precede the
// next part. Commands are carried out at once, without a reply.
func hear(t testing.TB, c *Conversation, b []byte, part func() int) (h heard) {
	t.Helper()
	var have []byte
	for len(b) > 0 {
		n := min(part(), len(b))
		have, b = append(have, b[:n]...), b[n:]
		for len(have) > 0 {
			n, a := c.Receive(have, opened)
			if a.Close || n > len(have) || a.HasCommand() && a.Write != nil {
				t.Fatalf("%d bytes: took %d, %+v", len(have), n, a)
			}
			have = have[n:]
			if a.Large != nil {
				var err error
				if a.Command, err = a.Large(); err != nil {
					a = c.Reply(nil, err, opened)
				}
			}
			if a.Command != nil {
				h.commands = append(h.commands, string(a.Command))
				require.Zero(t, c.Reply(nil, nil, opened))
			}
			if !a.End {
				h.answers += string(a.Write)
			} else if h.code, h.status = endOf(t, c.Format(), a.Write); h.code == "" {
				h.closed, h.answers = true, h.answers+string(a.Write)
			}
			if a.End {
				return h
			}
			if n == 0 {
				if len(have) >= ws.MaxHeaderSize {
					t.Fatal("it waits for more than a head")
				}
				break
			}
		}
	}
	return h
}

// endOf returns the code of the end frame at the beginning of b, and the status of the close frame
// behind it, if any. The code is "" if b begins with another frame.
func endOf(t testing.TB, format frame.Format, b []byte) (code wire.Code, status int) {
	t.Helper()
	if format != format.OffSocket() {
		frames := bytes.NewReader(b)
		f := readSocketFrame(t, frames)
		if f.Header.OpCode.IsControl() {
			return "", 0
		}
		b = f.Payload
		given, _ := ws.ParseCloseFrameData(readSocketFrame(t, frames).Payload)
		status = int(given)
	}
	c, err := wire.ParseLine(b)
	if format.IsBinary() {
		c, err = wire.NewCBORDecoder(bytes.NewReader(b)).Next()
	}
	require.NoError(t, err)
	require.NotNil(t, c.End)
	return c.End.Code, status
}

// Sizes of parts for hear.
func whole() int    { return 1 << 30 }
func bytewise() int { return 1 }
func inChunks() int { return readBytes }

// wantsHeard has new Conversations receive b whole, bytewise, cut in two everywhere, and in
// random parts. The result must always be the same.
func wantsHeard(t testing.TB, newTalk func() *Conversation, b []byte, want heard) {
	t.Helper()
	require.Equal(t, want, hear(t, newTalk(), b, whole))
	require.Equal(t, want, hear(t, newTalk(), b, bytewise), "byte by byte")
	require.Equal(t, want, hear(t, newTalk(), b, inChunks))
	for cut := 1; cut < min(len(b), 60); cut += exhaustive.Step(5) {
		parts := []int{cut, len(b)}
		require.Equal(t, want, hear(t, newTalk(), b, func() int {
			n := parts[0]
			if len(parts) > 1 {
				parts = parts[1:]
			}
			return n
		}), "cut at %d", cut)
	}
	wantsHeardInParts(t, newTalk, b, want, 1)
}

func wantsHeardInParts(t testing.TB, newTalk func() *Conversation, b []byte, want heard, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, uint64(len(b))))
	require.Equal(t, want, hear(t, newTalk(), b, func() int { return 1 + random.IntN(40) }), fmt.Sprintf("seed %d", seed))
}

// Receive returns the same for bytes in any parts as for one piece.
func FuzzConversation(f *testing.F) {
	f.Add(join(frameOf(text, "ab"), frameOf(fin|ping, "1"), frameOf(fin|continued, "cd"), frameOf(fin|closing, "\x03\xe8")), uint64(1))
	f.Add(join(frameOf(fin|rsv1|text, deflated("a command")), frameOf(fin|text, "{}")), uint64(2))
	f.Add([]byte("\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"), uint64(3))
	f.Add([]byte("\xa1\x64ping\xf5\xf6\x83\x01\x02\x03"), uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		for _, newTalk := range []func() *Conversation{newTextSocket, newBinarySocket, newInflatingSocket, newTCP} {
			want := hear(t, newTalk(), b, whole)
			require.Equal(t, want, hear(t, newTalk(), b, bytewise))
			wantsHeardInParts(t, newTalk, b, want, seed)
			for _, command := range want.commands {
				require.LessOrEqual(t, len(command), mostCommand)
			}
		}
	})
}

// A step of a story is one call of a Conversation at a time after its opening, and the
// Action in words: "command(C)", "reply(REF)", "pong(P)", "heartbeat", "end(CODE)", "bye",
// "close" or "". After the step, due is when Overdue is due; never: not before another
// call.
type step struct {
	at   time.Duration
	call func(c *Conversation, now time.Time) Action
	want string
	due  time.Duration
}

const never = -1

// receives receives b, and expects that this many bytes are taken.
func receives(b []byte, taken int) func(*Conversation, time.Time) Action {
	return func(c *Conversation, now time.Time) Action {
		n, a := c.Receive(b, now)
		if n != taken {
			panic(fmt.Sprintf("took %d", n))
		}
		return a
	}
}

func receivesAll(b []byte) func(*Conversation, time.Time) Action { return receives(b, len(b)) }

// readsLarge is receivesAll for a large command, whose error ends the connection.
func readsLarge(b []byte) func(*Conversation, time.Time) Action {
	return func(c *Conversation, now time.Time) Action {
		_, err := receivesAll(b)(c, now).Large()
		return c.Reply(nil, err, now)
	}
}

func replies(r *wire.Reply, err error) func(*Conversation, time.Time) Action {
	return func(c *Conversation, now time.Time) Action { return c.Reply(r, err, now) }
}

func ends(err error) func(*Conversation, time.Time) Action {
	return func(c *Conversation, _ time.Time) Action { return c.End(err) }
}

func overdue(c *Conversation, now time.Time) Action { return c.Overdue(now) }

func opens(c *Conversation, now time.Time) Action {
	c.Opened(now)
	return Action{}
}

func wrote(c *Conversation, now time.Time) Action {
	c.Wrote(now)
	return Action{}
}

func TestTheRulesOfAConversation(t *testing.T) {
	socket := func(s *Server) *Conversation { return s.NewWebSocket(frame.NDJSON, true, &client{}, opened) }
	tcp := func(s *Server) *Conversation {
		c := s.NewTCP(&client{}, opened)
		c.Opened(opened)
		return c
	}
	unopened := func(s *Server) *Conversation { return s.NewTCP(&client{}, opened) }
	cramped := func(*Server) *Conversation { // its client may hold half of the smallest share
		s := New(Config{}, wire.Limits{MessageBytes: 64 << 10}, memory.New(1, nil, metrics.New("test")), metrics.New("test"), nil)
		return s.NewTCP(&client{}, opened)
	}
	const sec = time.Second
	command, item := frameOf(fin|text, "{}"), []byte("\xa1\x64ping\xf5")
	two := slices.Concat(item, item)
	for name, story := range map[string]struct {
		of      func(*Server) *Conversation
		steps   []step
		counted metrics.Ending // the reason that the metrics count; empty: none
	}{
		"a WebSocket client that answers no heartbeat is cut off": {socket, []step{
			{29 * sec, overdue, "", 30 * sec},
			{30 * sec, overdue, "heartbeat", 40 * sec},
			{39 * sec, overdue, "", 40 * sec},
			{40 * sec, overdue, "close", 40 * sec},
		}, metrics.Silent},
		"a WebSocket client that answers, or sends anything, is not": {socket, []step{
			{30 * sec, overdue, "heartbeat", 40 * sec},
			{39 * sec, receivesAll(frameOf(fin|pong, "")), "", 69 * sec},
			{69 * sec, receivesAll(frameOf(fin|ping, "p")), "pong(p)", 99 * sec},
			{99 * sec, overdue, "heartbeat", 109 * sec},
		}, ""},
		"a client that reads the heartbeat late still has its time": {socket, []step{
			{30 * sec, overdue, "heartbeat", 40 * sec},
			{45 * sec, wrote, "", 55 * sec},
			{54 * sec, receivesAll(frameOf(fin|pong, "")), "", 84 * sec},
			{55 * sec, wrote, "", 84 * sec},
		}, ""},
		"a TCP client may be silent": {tcp, []step{
			{time.Hour, overdue, "", never},
			{time.Hour, receivesAll(frame.CBOR.Heartbeat()), "", never},
		}, ""},
		"the rest of a command is due": {socket, []step{
			{5 * sec, receivesAll(command[:7]), "", 25 * sec},
			{24 * sec, receivesAll(command[7:]), "command({})", never},
			{24 * sec, replies(nil, nil), "", 54 * sec},
		}, ""},
		"more parts of a command do not extend the time-out": {socket, []step{
			{0, receivesAll(frameOf(text, "a")), "", 20 * sec},
			{10 * sec, receivesAll(frameOf(continued, "b")), "", 20 * sec},
			{15 * sec, receivesAll(frameOf(fin|ping, "")), "pong()", 20 * sec},
			{20 * sec, overdue, "end(invalid_request) bye", never},
			{20 * sec, wrote, "", 21 * sec},
			{21 * sec, overdue, "close", 21 * sec},
		}, metrics.SlowBody},
		"half a head of a frame has the same time-out": {socket, []step{
			{5 * sec, receives(command[:3], 0), "", 25 * sec},
			{10 * sec, receives(command[:4], 0), "", 25 * sec},
			{25 * sec, overdue, "end(invalid_request) bye", never},
		}, metrics.SlowBody},
		"half an item has the same time-out": {tcp, []step{
			{5 * sec, receivesAll(item[:2]), "", 25 * sec},
			{24 * sec, receives(item[2:], len(item)-2), "command(" + string(item) + ")", never},
			{25 * sec, replies(nil, nil), "", never},
			{30 * sec, receivesAll(item[:1]), "", 50 * sec},
			{50 * sec, overdue, "end(invalid_request)", never},
		}, metrics.SlowBody},
		"one command is carried out at a time, however long it takes": {tcp, []step{
			{0, receives(two, len(item)), "command(" + string(item) + ")", never},
			{sec, receives(item, 0), "", never},
			{time.Hour, overdue, "", never},
			{time.Hour, replies(&wire.Reply{Ref: new(uint64(7))}, nil), "reply(7)", never},
			{time.Hour, receivesAll(item), "command(" + string(item) + ")", never},
		}, ""},
		"the client is not silent while its command is carried out": {socket, []step{
			{0, receivesAll(command), "command({})", never},
			{time.Hour, replies(&wire.Reply{Ref: new(uint64(7))}, nil), "reply(7)", time.Hour + 30*sec},
		}, ""},
		"an invalid command ends the connection": {socket, []step{
			{0, receivesAll(command), "command({})", never},
			{0, replies(nil, problem.New(wire.CodeInvalidRequest, "", "")), "end(invalid_request) bye", never},
			{0, receivesAll(command), "", never},
		}, ""},
		"the client does not get the details of a failure": {tcp, []step{
			{0, receivesAll(item), "command(" + string(item) + ")", never},
			{0, replies(nil, errors.New("it panicked")), "close", never},
		}, ""},
		"a session that ends while a command waits": {socket, []step{
			{0, receivesAll(command), "command({})", never},
			{sec, ends(problem.New(wire.CodeSessionEnded, "", "")), "end(session_ended) bye", never},
			{2 * sec, replies(&wire.Reply{Ref: new(uint64(7))}, nil), "", never},
			{2 * sec, ends(problem.New(wire.CodeDraining, "", "")), "", never},
		}, ""},
		"a client that closes gets its own code": {socket, []step{
			{0, receivesAll(frameOf(fin|closing, "\x0f\xa0because")), "bye", never},
			{sec, wrote, "", 2 * sec},
			{sec, receivesAll(command), "", 2 * sec},
			{2 * sec, overdue, "close", 2 * sec},
		}, ""},
		"a command that is too large ends it": {socket, []step{
			{0, receives([]byte("\x81\xff\x00\x00\x00\x00\x00\x7f\xff\xff\x00\x00\x00\x00"), 0), "end(message_too_large) bye", never},
		}, ""},
		"a command that inflates too much ends it": {socket, []step{
			{0, readsLarge(frameOf(fin|rsv1|text, deflated(string(make([]byte, 200<<10))))), "end(message_too_large) bye", never},
		}, ""},
		"the opening has a time-out": {unopened, []step{
			{0, overdue, "", 10 * sec},
			{5 * sec, receivesAll(frame.CBOR.Heartbeat()), "", 10 * sec},
			{9 * sec, receivesAll(item[:2]), "", 10 * sec},
			{10 * sec, overdue, "close", 10 * sec},
		}, ""},
		"carrying out the opening has none": {unopened, []step{
			{9 * sec, receivesAll(item), "command(" + string(item) + ")", never},
			{20 * sec, receives(item, 0), "", never},
			{20 * sec, opens, "", never},
			{20 * sec, receivesAll(item), "command(" + string(item) + ")", never},
		}, ""},
		"the client gets the problem of a failed opening": {unopened, []step{
			{0, receivesAll(item), "command(" + string(item) + ")", never},
			{sec, ends(problem.New(wire.CodeInvalidTopic, "", "")), "end(invalid_topic)", never},
			{sec, wrote, "", 2 * sec},
		}, ""},
		"a command that takes too much memory ends it": {cramped, []step{
			{0, receivesAll([]byte("\x7a\x00\x0f\x00\x00" + string(make([]byte, 500_000)))), "", 10 * sec},
			{0, receivesAll(make([]byte, 100_000)), "end(limited)", never},
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			counted := func(why metrics.Ending) int {
				return int(testutil.ToFloat64(aServer.metrics.ConnectionsEnded.WithLabelValues(string(why))))
			}
			before := map[metrics.Ending]int{metrics.SlowBody: counted(metrics.SlowBody), metrics.Silent: counted(metrics.Silent)}
			c := story.of(aServer)
			for i, step := range story.steps {
				now := opened.Add(step.at)
				require.Equal(t, step.want, wordsOf(t, c.Format(), step.call(c, now)), "step %d", i)
				if step.due == never {
					require.Zero(t, c.Due(), "step %d", i)
				} else {
					require.Equal(t, step.due, c.Due().Sub(opened), "step %d", i)
				}
			}
			if story.counted != "" {
				before[story.counted]++
			}
			for why, want := range before {
				require.Equal(t, want, counted(why), why)
			}
		})
	}
}

// wordsOf returns an Action in the words of step.
func wordsOf(t *testing.T, format frame.Format, a Action) string {
	t.Helper()
	var words []string
	if a.Command != nil {
		words = append(words, "command("+string(a.Command)+")")
	}
	onSocket := format != format.OffSocket()
	for b := bytes.NewReader(a.Write); b.Len() > 0; {
		payload, code := a.Write, ws.OpBinary
		if onSocket {
			f := readSocketFrame(t, b)
			payload, code = f.Payload, f.Header.OpCode
		} else {
			b.Reset(nil)
		}
		words = append(words, wordOf(t, format, code, payload))
	}
	require.Equal(t, a.End, slices.ContainsFunc(words, func(w string) bool { return w == "bye" || strings.HasPrefix(w, "end(") }))
	if a.Close {
		words = append(words, "close")
	}
	return strings.Join(words, " ")
}

func wordOf(t *testing.T, format frame.Format, code ws.OpCode, payload []byte) string {
	t.Helper()
	switch code {
	case ws.OpPing:
		return "heartbeat"
	case ws.OpPong:
		return "pong(" + string(payload) + ")"
	case ws.OpClose:
		return "bye"
	}
	c, err := wire.ParseLine(payload)
	if format.IsBinary() {
		c, err = wire.NewCBORDecoder(bytes.NewReader(payload)).Next()
	}
	require.NoError(t, err)
	if c.End != nil {
		return "end(" + string(c.End.Code) + ")"
	}
	require.NotNil(t, c.Reply)
	return fmt.Sprintf("reply(%d)", *c.Reply.Ref)
}

// The bytes of an unfinished command count until the connection ends.
func TestAConversationCountsWhatItHolds(t *testing.T) {
	const begin, rest = 20_000, 10_000
	for name, end := range map[string]func(*Conversation){
		"the rest comes": func(c *Conversation) {
			_, a := c.Receive(frameOf(fin|continued, string(make([]byte, rest))), opened)
			command, err := a.Large()
			require.NoError(t, err)
			require.Len(t, command, begin+rest)
			require.EqualValues(t, begin+rest-16<<10, account.Of(memory.Unfinished), "it may wait long for its turn")
			c.Reply(nil, nil, opened)
		},
		"it ends":         func(c *Conversation) { c.End(problem.New(wire.CodeDraining, "", "")) },
		"it is closed":    (*Conversation).Close,
		"the client ends": func(c *Conversation) { c.Receive(frameOf(fin|closing, ""), opened) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newTextSocket()
			_, a := c.Receive(frameOf(text, string(make([]byte, begin))), opened)
			require.Zero(t, a)
			require.EqualValues(t, begin-16<<10, account.Of(memory.Unfinished), "some is free")
			end(c)
			require.Zero(t, account.Of(memory.Unfinished))
		})
	}
}

// A TCP connection does not count its first item any more once that was carried out, however long
// the client is silent afterwards.
func TestALargeFirstItemIsCountedOnlyMeanwhile(t *testing.T) {
	c := aServer.NewTCP(&client{}, opened)
	item := cbor.AppendFromJSON(nil, []byte(`"`+strings.Repeat("x", 50_000)+`"`))
	_, a := c.Receive(item, opened)
	require.NotNil(t, a.Large)
	require.EqualValues(t, len(item)-16<<10, account.Of(memory.Unfinished), "some is free")
	c.Opened(opened)
	require.Zero(t, account.Of(memory.Unfinished))
}

// readSocketFrame reads one WebSocket frame.
func readSocketFrame(t testing.TB, r io.Reader) ws.Frame {
	t.Helper()
	head, err := ws.ReadHeader(r)
	require.NoError(t, err)
	payload := make([]byte, head.Length)
	_, err = io.ReadFull(r, payload)
	require.NoError(t, err)
	return ws.Frame{Header: head, Payload: payload}
}
