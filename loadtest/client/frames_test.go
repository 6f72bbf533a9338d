package client

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// seen is what both readers must agree on.
type seen struct {
	kind     Kind
	position wire.Position
	data     string
	gap      wire.Gap
	end      wire.Code
}

type seenFrames struct{ all []seen }

func (s *seenFrames) Frame(f *Frame) error {
	one := seen{kind: f.Kind, position: f.Position, data: string(f.Data)}
	if f.Gap != nil {
		one.gap = *f.Gap
	}
	if f.End != nil {
		one.end = f.End.Code
	}
	s.all = append(s.all, one)
	return nil
}

// scanIn feeds text in pieces of the given size.
func scanIn(text []byte, size int) ([]seen, error) {
	s := Scanner{lines: &lineCache{}}
	sink := &seenFrames{}
	for b := text; len(b) > 0; {
		piece := bytes.Clone(b[:min(size, len(b))])
		b = b[len(piece):]
		if err := s.Feed(piece, sink); err != nil {
			return sink.all, err
		}
		clear(piece)
	}
	return sink.all, s.Finish()
}

// decode reads text as every client does.
func decode(text []byte) ([]seen, error) {
	d := wire.NewDecoder(bytes.NewReader(text))
	var all []seen
	for {
		c, err := d.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, fromContent(c))
	}
}

func fromContent(c wire.Content) seen {
	switch {
	case c.Message != nil:
		return seen{kind: Message, position: c.Message.Position, data: string(c.Message.Data)}
	case c.Gap != nil:
		return seen{kind: Gap, gap: *c.Gap}
	case c.Moved != nil:
		return seen{kind: Moved}
	case c.Hello != nil:
		return seen{kind: Hello}
	case c.End != nil:
		return seen{kind: End, end: c.End.Code}
	}
	return seen{kind: Heartbeat}
}

var streams = map[string]string{
	"own messages": "{\"position\":\"a.b@k3:18\",\"time\":1700000000000,\"data\":[\"#000001\",\"string 1\"]}\n" +
		"{\"position\":\"a.b@k3:19\",\"time\":1700000000000,\"type\":\"text/plain\",\"text\":\"0000000017\"}\n",
	"the same twice": strings.Repeat("{\"position\":\"a@k3:18\",\"time\":0,\"data\":1}\n", 2),
	"everything else": "\n{\"hello\":{\"positions\":[\"a@k3:0\"]}}\n  \n" +
		"{\"gap\":{\"topic\":\"a\",\"reason\":\"slow\",\"after\":\"a@k3:9\",\"position\":\"a@k3:19\"}}\n" +
		"{\"moved\":{\"positions\":[\"a@k3:20\"]}}\n{\"later\":1}\n" +
		"{\"end\":{\"status\":503,\"code\":\"draining\"}}\n",
	"with id and key":      "{\"position\":\"a@k3:1\",\"time\":5,\"id\":\"x\",\"key\":\"y\",\"data\":{}}\n",
	"escapes":              "{\"position\":\"a@k3:1\",\"time\":5,\"type\":\"text/plain\",\"text\":\"a\\\"b\\u00e9\"}\n",
	"base64":               "{\"position\":\"a@k3:1\",\"time\":5,\"type\":\"image/png\",\"base64\":\"iVBO\"}\n",
	"carriage return":      "{\"position\":\"a@k3:1\",\"time\":5,\"data\":1}\r\n",
	"spaces in data":       "{\"position\":\"a@k3:1\",\"time\":5,\"data\": 1 }\n",
	"more members":         "{\"position\":\"a@k3:1\",\"time\":5,\"data\":1,\"new\":2}\n",
	"members in data":      "{\"position\":\"a@k3:1\",\"time\":5,\"data\":{\"gap\":1}}\n",
	"null data":            "{\"position\":\"a@k3:1\",\"time\":5,\"data\":null}\n",
	"two data":             "{\"position\":\"a@k3:1\",\"time\":5,\"data\":1,\"data\":2}\n",
	"two kinds":            "{\"position\":\"a@k3:1\",\"time\":5,\"data\":1,\"end\":{}}\n",
	"another order":        "{\"time\":5,\"position\":\"a@k3:1\",\"data\":1}\n",
	"negative time":        "{\"position\":\"a@k3:1\",\"time\":-5,\"data\":1}\n",
	"time with zero":       "{\"position\":\"a@k3:1\",\"time\":05,\"data\":1}\n",
	"long time":            "{\"position\":\"a@k3:1\",\"time\":99999999999999999999,\"data\":1}\n",
	"bad position":         "{\"position\":\"a@K3:1\",\"time\":5,\"data\":1}\n",
	"bad data":             "{\"position\":\"a@k3:1\",\"time\":5,\"data\":[1}\n",
	"no data":              "{\"position\":\"a@k3:1\",\"time\":5}\n",
	"empty data":           "{\"position\":\"a@k3:1\",\"time\":5,\"data\":}\n",
	"empty type":           "{\"position\":\"a@k3:1\",\"time\":5,\"type\":\"\",\"text\":\"a\"}\n",
	"deep data":            "{\"position\":\"a@k3:1\",\"time\":5,\"data\":" + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + "}\n",
	"bad UTF-8":            "{\"position\":\"a@k3:1\",\"time\":5,\"type\":\"text/plain\",\"text\":\"\xff\"}\n",
	"cut off":              "{\"position\":\"a@k3:1\",\"time\":5,\"data\":1}\n{\"position\":\"a@k3:2\"",
	"good, then bad":       "{\"position\":\"a@k3:1\",\"time\":5,\"data\":1}\nnonsense\n",
	"prefix of the former": "{\"position\":\"a@k3:1\",\"time\":5,\"data\":12}\n{\"position\":\"a@k3:1\",\"time\":5,\"data\":1}\n",
}

// The lean scanner sees what wire.Decoder sees, however the bytes are split.
func TestScannerAgreesWithDecoder(t *testing.T) {
	for name, text := range streams {
		t.Run(name, func(t *testing.T) {
			want, wantErr := decode([]byte(text))
			for size := 1; size <= min(len(text), 300); size++ {
				wantAgreement(t, want, wantErr, []byte(text), size)
			}
			wantAgreement(t, want, wantErr, []byte(text), len(text))
		})
	}
}

func wantAgreement(t *testing.T, want []seen, wantErr error, text []byte, size int) {
	t.Helper()
	got, err := scanIn(text, size)
	require.Equal(t, want, got, "pieces of %d", size)
	require.Equal(t, wantErr == nil, err == nil, "pieces of %d: got %v, want %v", size, err, wantErr)
	require.Equal(t, errors.Is(wantErr, io.ErrUnexpectedEOF), errors.Is(err, io.ErrUnexpectedEOF) && len(text) > 0 && text[len(text)-1] != '\n')
}

// Our own messages take the short way: if the daemon's form changes, the load
// generator must not become slow in silence.
func TestOwnMessagesAreReadLeanly(t *testing.T) {
	position := wire.Position{Topic: "loadtest.AAAA.t0", Epoch: "k3", Offset: 17}
	for _, m := range []*wire.Message{
		{Position: position, Time: 1700000000000, Data: []byte(`["#000001","string 1"]`)},
		{Position: position, Time: 1700000000000, Type: "text/plain", Data: []byte("0000000017")},
	} {
		line := bytes.TrimSuffix(wire.Content{Message: m}.AppendJSON(nil), []byte("\n"))
		f, ok := leanMessage(line)
		require.True(t, ok, "%s", line)
		require.Equal(t, m.Data, f.Data)
		require.Equal(t, position, f.Position)
	}
}

// Fast path: a line that came before costs no allocation.
func TestARepeatedLineAllocatesNothing(t *testing.T) {
	s := Scanner{lines: &lineCache{}}
	line := []byte(streams["the same twice"])
	sink := &countingSink{}
	require.NoError(t, s.Feed(line, sink))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if s.Feed(line, sink) != nil {
			panic("BUG")
		}
	}))
}

type countingSink struct{ n int }

func (c *countingSink) Frame(*Frame) error {
	c.n++
	return nil
}

func FuzzScanner(f *testing.F) {
	for _, text := range streams {
		if len(text) < 1000 {
			f.Add([]byte(text), uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		want, wantErr := decode(text)
		wantAgreement(t, want, wantErr, text, int(size)+1)
	})
}
