package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

func TestAppendMessageCBOR(t *testing.T) {
	const head = "00 63612e62 626b33 12 1b0000018bcfe56800"
	for _, tt := range []struct {
		name string
		m    Message
		want string // after the time
	}{
		{"JSON", Message{Data: []byte(`{"n":1.0}`)}, "f6 a1616ef93c00 f6f6"},
		{"JSON null", Message{Data: []byte(`null`)}, "f6 f6 f6f6"},
		{"JSON that CBOR would change", Message{Data: []byte(`1e400`)}, "f6 d90106 453165343030 f6f6"},
		{"JSON that came in CBOR", Message{Data: []byte{0x9f, 0x18, 1, 0xff}, CBOR: true}, "f6 9f1801ff f6f6"},
		{"text", Message{Type: "text/plain", Data: []byte("hi")}, "6a746578742f706c61696e 626869 f6f6"},
		{"bytes", Message{Type: "image/png", Data: []byte{0xff, 0}}, "69696d6167652f706e67 42ff00 f6f6"},
		{"no bytes", Message{Type: "image/png"}, "69696d6167652f706e67 40 f6f6"},
		{"text with invalid UTF-8", Message{Type: "text/plain", Data: []byte{0xff}}, "6a746578742f706c61696e 41ff f6f6"},
		{"id and key", Message{Data: []byte(`1`), ID: "i", Key: "k"}, "f6 01 6169 616b"},
		{"by", Message{Data: []byte(`1`), By: "b"}, "8a: f6 01 f6f6 6162"},
		{"by and claims", Message{Data: []byte(`1`), By: "b", Claims: []byte(`{"n":1.0}`)}, "8b: f6 01 f6f6 6162 a1616ef93c00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := tt.m
			m.Position, m.Time = someTopic, 1700000000000
			item := appendMessageCBOR([]byte("before"), &m)[len("before"):]
			elements, rest := "89", tt.want
			if tt.m.By != "" {
				elements, rest, _ = strings.Cut(tt.want, ":")
			}
			require.Equal(t, unhex(t, elements+head+rest), item)

			inCBOR, n, err := ParseItem(item)
			require.NoError(t, err)
			require.Equal(t, len(item), n)
			inJSON, err := ParseLine(appendMessage(nil, &m))
			require.NoError(t, err)
			require.Equal(t, inJSON, inCBOR)
		})
	}
}

const someJSON = `{"symbol":"ACME","id":8812345,"price":1234.56,"open":true,"time":"2026-01-02T03:04:05Z","venue":{"name":"X\u00e9","lot":100,"fee":-0.25},"rest":[1,2.5,null,"a \"b\""]}`

// cborAnswer is a stream with one of each frame.
func cborAnswer() []byte {
	ref := uint64(7)
	b := Content{Hello: &Hello{Positions: []Position{someTopic}}}.AppendCBOR(nil)
	b = appendMessageCBOR(b, someMessage())
	b = Content{}.AppendCBOR(b)
	b = appendGapCBOR(b, someGap(GapEvicted))
	b = appendMessageCBOR(b, &Message{Position: someTopic, Type: "text/plain", Data: []byte("h\u00e9\n")})
	b = appendReplyCBOR(b, &Reply{Ref: &ref, Position: &someTopic, Time: 5})
	b = Content{Done: &Done{Position: someTopic, More: true}}.AppendCBOR(b)
	return Content{End: &Problem{Title: "Service Unavailable", Status: 503, Code: CodeDraining}}.AppendCBOR(b)
}

func readAllCBOR(d *CBORDecoder) ([]Content, error) {
	var all []Content
	for {
		c, err := d.Next()
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
}

func TestCBORDecoderReadsInAnyPieces(t *testing.T) {
	want, err := readAllCBOR(NewCBORDecoder(bytes.NewReader(cborAnswer())))
	require.Equal(t, io.EOF, err)
	require.Len(t, want, 8)
	require.NotNil(t, want[0].Hello)
	require.NotNil(t, want[1].Message)
	require.Equal(t, Content{}, want[2], "heartbeat")
	require.NotNil(t, want[3].Gap)
	require.Equal(t, "h\u00e9\n", string(want[4].Message.Data))
	require.EqualValues(t, 7, *want[5].Reply.Ref)
	require.False(t, want[5].Counts())
	require.Equal(t, &Done{someTopic, true}, want[6].Done)
	require.NotNil(t, want[7].End)

	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"one byte": iotest.OneByteReader, "half": iotest.HalfReader, "error with the last": iotest.DataErrReader,
	} {
		got, err := readAllCBOR(NewCBORDecoder(pieces(bytes.NewReader(cborAnswer()))))
		require.Equal(t, io.EOF, err, name)
		require.Equal(t, want, got, name)
	}
}

// If the connection is lost at any byte, the decoder returns the whole frames before it.
func TestCBORDecoderOfAnAnswerCutAtEveryByte(t *testing.T) {
	whole := cborAnswer()
	want, _ := readAllCBOR(NewCBORDecoder(bytes.NewReader(whole)))
	ends := map[int]int{0: 0} // where frames end, and how many have
	for at := 0; at < len(whole); {
		_, n, err := ParseItem(whole[at:])
		require.NoError(t, err)
		at += n
		ends[at] = len(ends)
	}
	frames := 0
	for cut := range len(whole) + 1 {
		got, err := readAllCBOR(NewCBORDecoder(bytes.NewReader(whole[:cut])))
		wantErr := io.ErrUnexpectedEOF
		if n, ok := ends[cut]; ok {
			frames, wantErr = n, io.EOF
		}
		require.Equal(t, wantErr, err, "cut at %d", cut)
		require.Equal(t, want[:frames], append([]Content{}, got...), "cut at %d", cut)
	}
}

func TestParseItemOfHalfAnItem(t *testing.T) {
	item := appendMessageCBOR(nil, someMessage())
	for cut := range len(item) {
		_, _, err := ParseItem(item[:cut])
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "cut at %d", cut)
	}
}

func TestCBORDecoderPassesErrorsOn(t *testing.T) {
	reset := errors.New("connection reset")
	half := cborAnswer()[:len(cborAnswer())/2]
	_, err := readAllCBOR(NewCBORDecoder(io.MultiReader(bytes.NewReader(half), iotest.ErrReader(reset))))
	require.ErrorIs(t, err, reset)
}

// The decoder reads frames of any size, and releases the memory of a large one.
func TestCBORDecoderOfSmallAndLargeFrames(t *testing.T) {
	sizes := []int{0, 100, readAhead, 3 * maxIdleBuffer, 1, 100_000, 0, 0, 5 * readAhead}
	var stream []byte
	for _, n := range sizes {
		stream = appendMessageCBOR(stream, &Message{Position: someTopic, Type: "a/b", Data: make([]byte, n)})
	}
	d := NewCBORDecoder(bytes.NewReader(append(stream, bytes.Repeat([]byte{cbor.Null}, 5*readAhead)...)))
	for _, n := range sizes {
		c, err := d.Next()
		require.NoError(t, err)
		require.Len(t, c.Message.Data, n)
	}
	_, err := readAllCBOR(d)
	require.Equal(t, io.EOF, err)
	require.LessOrEqual(t, d.buffer.Cap(), maxIdleBuffer)
}

// A false length costs no memory. A frame without an end costs at most a few times the
// largest frame.
func TestCBORDecoderIsBounded(t *testing.T) {
	for _, announced := range []string{
		"89 00 5b000000ffffffffff", "89 00 5a7fffffff", "9bffffffffffffffff", "89 00 9affffffff", "bbffffffffffffffff",
	} {
		d := NewCBORDecoder(bytes.NewReader(unhex(t, announced)))
		_, err := d.Next()
		require.Error(t, err, announced)
		require.LessOrEqual(t, d.buffer.Cap(), 2*readAhead, announced)
	}
	_, err := NewCBORDecoder(strings.NewReader(strings.Repeat("\x81", 1000))).Next()
	require.ErrorIs(t, err, cbor.ErrNested)

	endless := io.MultiReader(strings.NewReader("\x9f"), &again{append(cbor.AppendHead(nil, cbor.Bytes, 1<<16), make([]byte, 1<<16)...), 0})
	d := NewCBORDecoder(endless)
	_, err = d.Next()
	require.ErrorContains(t, err, "longer than")
	require.LessOrEqual(t, d.buffer.Cap(), 4*MaxFrameBytes)
}

// again repeats bytes without an end.
type again struct {
	bytes []byte
	at    int
}

func (a *again) Read(b []byte) (int, error) {
	n := copy(b, a.bytes[a.at:])
	a.at = (a.at + n) % len(a.bytes)
	return n, nil
}

// A message reuses the strings of the previous one. Only its payload is allocated.
func TestCBORDecoderAllocations(t *testing.T) {
	item := appendMessageCBOR(nil, &Message{Position: someTopic, Time: 5, Data: []byte(someJSON)})
	stream := bytes.Repeat(item, 3000)
	d := NewCBORDecoder(bytes.NewReader(stream))
	_, err := d.Next()
	require.NoError(t, err)
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { _, _ = d.Next() }), 3.0)
}

func FuzzCBORDecoder(f *testing.F) {
	f.Add(cborAnswer())
	f.Add([]byte("\x81\x18\x63\x9f\xff\xf6"))
	f.Add([]byte("\x82\x02\xa1ipositions\x81\xf6"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		want, wantErr := readAllCBOR(NewCBORDecoder(bytes.NewReader(stream)))
		got, err := readAllCBOR(NewCBORDecoder(iotest.OneByteReader(bytes.NewReader(stream))))
		require.Equal(t, want, got)
		require.Equal(t, errors.Is(wantErr, io.EOF), errors.Is(err, io.EOF))
		for _, c := range want {
			requireSurvives(t, c)
		}
	})
}

// requireSurvives writes and reads a content in both formats.
func requireSurvives(t *testing.T, c Content) {
	t.Helper()
	again, n, err := ParseItem(c.AppendCBOR(nil))
	require.NoError(t, err)
	require.Equal(t, len(c.AppendCBOR(nil)), n)
	inJSON, err := ParseLine(c.AppendJSON(nil))
	require.NoError(t, err)
	require.Equal(t, string(c.AppendJSON(nil)), string(inJSON.AppendJSON(nil)))
	if c.Message != nil && c.Message.Type == "" {
		requireSameJSON(t, c.Message.Data, again.Message.Data)
		c.Message.Data, again.Message.Data = nil, nil
	}
	require.Equal(t, c.AppendCBOR(nil), again.AppendCBOR(nil))
}

func BenchmarkAppendMessageCBOR(b *testing.B) {
	m, dst := &Message{Position: someTopic, Time: 1700000000000, Data: []byte(someJSON)}, make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		appendMessageCBOR(dst, m)
	}
}

func BenchmarkParseItem(b *testing.B) {
	item := appendMessageCBOR(nil, &Message{Position: someTopic, Time: 1700000000000, Data: []byte(someJSON)})
	b.ReportAllocs()
	for b.Loop() {
		_, _, _ = ParseItem(item)
	}
}

func BenchmarkParseLine(b *testing.B) {
	line := appendMessage(nil, &Message{Position: someTopic, Time: 1700000000000, Data: []byte(someJSON)})
	b.ReportAllocs()
	for b.Loop() {
		_, _ = ParseLine(line)
	}
}

func someMessage() *Message {
	return &Message{Position: someTopic, Time: 1700000000000, Data: []byte(`{"n":1}`)}
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return b
}

// requireSameJSON compares values: the text of a number may differ.
func requireSameJSON(t *testing.T, want, got []byte) {
	t.Helper()
	require.Equal(t, cbor.AppendFromJSON(nil, want), cbor.AppendFromJSON(nil, got))
}
