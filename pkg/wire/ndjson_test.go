package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// answer is a stream with one of each frame.
func answer() []byte {
	b := Content{Hello: &Hello{Positions: []Position{someTopic}}}.AppendJSON(nil)
	b = appendMessage(b, someMessage())
	b = Content{}.AppendJSON(b)
	b = appendGap(b, someGap(GapEvicted))
	b = appendMessage(b, &Message{Position: someTopic, Type: "text/plain", Data: []byte("h\u00e9\n")})
	return Content{End: &Problem{Title: "Service Unavailable", Status: 503, Code: CodeDraining}}.AppendJSON(b)
}

// readAll returns the contents up to the error that ends them.
func readAll(d *Decoder) ([]Content, error) {
	var all []Content
	for {
		c, err := d.Next()
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
}

func TestDecoderReadsInAnyPieces(t *testing.T) {
	want, err := readAll(NewDecoder(bytes.NewReader(answer())))
	require.Equal(t, io.EOF, err)
	require.Len(t, want, 6)
	require.NotNil(t, want[0].Hello)
	require.NotNil(t, want[1].Message)
	require.Equal(t, Content{}, want[2], "heartbeat")
	require.NotNil(t, want[3].Gap)
	require.Equal(t, "h\u00e9\n", string(want[4].Message.Data))
	require.NotNil(t, want[5].End)

	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"one byte": iotest.OneByteReader, "half": iotest.HalfReader, "error with the last": iotest.DataErrReader,
	} {
		got, err := readAll(NewDecoder(pieces(bytes.NewReader(answer()))))
		require.Equal(t, io.EOF, err, name)
		require.Equal(t, want, got, name)
	}
}

// If the connection is lost at any byte, the decoder returns the whole frames before it.
func TestDecoderOfAnAnswerCutAtEveryByte(t *testing.T) {
	whole := answer()
	want, _ := readAll(NewDecoder(bytes.NewReader(whole)))
	for cut := range len(whole) + 1 {
		got, err := readAll(NewDecoder(bytes.NewReader(whole[:cut])))
		frames := bytes.Count(whole[:cut], []byte("\n"))
		require.Len(t, got, frames, "cut at %d", cut)
		require.Equal(t, want[:frames], append([]Content{}, got...), "cut at %d", cut)
		if cut == 0 || whole[cut-1] == '\n' {
			require.Equal(t, io.EOF, err, "cut at %d", cut)
		} else {
			require.Equal(t, io.ErrUnexpectedEOF, err, "cut at %d", cut)
		}
	}
}

func TestDecoderPassesErrorsOn(t *testing.T) {
	reset := errors.New("connection reset")
	half := answer()[:len(answer())/2]
	_, err := readAll(NewDecoder(io.MultiReader(bytes.NewReader(half), iotest.ErrReader(reset))))
	require.ErrorIs(t, err, reset)

	_, err = NewDecoder(strings.NewReader("what?\n")).Next()
	require.ErrorContains(t, err, `frame "what?"`)
}

func TestDecoderKeepsNoMemoryOfTheLine(t *testing.T) {
	d := NewDecoder(bytes.NewReader(append(appendMessage(nil, someMessage()), `{"position":"x.y@zz:99","time":1,"data":[9,9,9]}`+"\n"...)))
	c, err := d.Next()
	require.NoError(t, err)
	_, err = d.Next()
	require.NoError(t, err)
	require.Equal(t, someMessage(), c.Message)
}

func TestDecoderOfLongLines(t *testing.T) {
	m := someMessage()
	m.Data = []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	c, err := NewDecoder(bytes.NewReader(appendMessage(nil, m))).Next()
	require.NoError(t, err)
	require.Equal(t, m, c.Message)

	endless := iotest.DataErrReader(io.LimitReader(xs{}, 10*MaxFrameBytes))
	_, err = NewDecoder(endless).Next()
	require.ErrorContains(t, err, "is longer than")
	require.Less(t, len(err.Error()), 200)
}

var manyXs = bytes.Repeat([]byte("x"), 4096)

// xs reads as x without end.
type xs struct{}

func (xs) Read(p []byte) (int, error) {
	return copy(p, manyXs), nil
}

func TestCounts(t *testing.T) {
	require.True(t, Content{Message: someMessage()}.Counts())
	require.True(t, Content{Gap: someGap(GapSlow)}.Counts())
	require.False(t, Content{Hello: &Hello{}}.Counts())
	require.False(t, Content{Moved: &Moved{}}.Counts())
	require.False(t, Content{End: &Problem{}}.Counts())
	require.False(t, Content{}.Counts(), "heartbeat")
}

func TestMovedHasPositions(t *testing.T) {
	for _, line := range []string{
		`{"moved":{}}`, `{"moved":{"positions":null}}`, `{"moved":{"positions":[null]}}`, `{"moved":{"positions":["a@k3"]}}`, `{"moved":[]}`,
		`{"moved":{"positions":["a@k3:1"]},"hello":{"positions":[]}}`,
	} {
		_, err := ParseLine([]byte(line))
		require.Error(t, err, line)
	}
}

func FuzzParseLine(f *testing.F) {
	for line := range bytes.Lines(answer()) {
		f.Add(line)
	}
	for _, v := range frameVectors(f) {
		f.Add([]byte(v.Line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		first, err := ParseLine(line)
		if err != nil || bytes.Contains(bytes.TrimSpace(line), []byte("\n")) {
			return
		}
		written := first.AppendJSON(nil)
		require.Equal(t, 1, bytes.Count(written, []byte("\n")), "%q", written)
		second, err := ParseLine(written)
		require.NoError(t, err, "%q", written)
		require.Equal(t, string(written), string(second.AppendJSON(nil)))
		require.Equal(t, first.Counts(), second.Counts())
		if first.Message != nil {
			require.Equal(t, string(first.Message.Data), string(second.Message.Data))
		}
	})
}

// A client ignores claims that are not an object, and keeps them out of what it writes.
func TestOnlyAnObjectIsClaims(t *testing.T) {
	for claims, want := range map[string]string{`{}`: `{}`, `{"name":"A"}`: `{"name":"A"}`, `null`: ``, `1`: ``, `"{"`: ``, `[{}]`: ``} {
		inJSON, err := ParseLine([]byte(`{"position":"a@k3:1","time":1,"by":"b","claims":` + claims + `,"data":1}`))
		require.NoError(t, err, claims)
		require.Equal(t, want, string(inJSON.Message.Claims))
		item := append(unhex(t, "8b 00 6161 626b33 01 01 f6 01 f6 f6 6162"), cbor.AppendFromJSON(nil, []byte(claims))...)
		inCBOR, _, err := ParseItem(item)
		require.NoError(t, err, claims)
		require.Equal(t, inJSON, inCBOR)
	}
}
