package pubsub

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

const messageEvent = `data: {"position":"a@k3:1","time":1,"data":1}`

func decodeEvents(stream string) (contents []wire.Content, err error) {
	d := newEventDecoder(iotest.OneByteReader(strings.NewReader(stream)))
	for {
		content, err := d.Next()
		if err != nil {
			return contents, err
		}
		contents = append(contents, content)
	}
}

func TestEventsAreReadAsTheStandardHasThem(t *testing.T) {
	for name, stream := range map[string]string{
		"plain":            messageEvent + "\n\n",
		"carriage returns": "\r" + messageEvent + "\r\r",
		"both":             messageEvent + "\r\n\r\n",
		"mixed":            messageEvent + "\n\r\n",
		"no space":         strings.Replace(messageEvent, ": ", ":", 1) + "\n\n",
		"many lines":       "data: {\"position\":\ndata: \"a@k3:1\",\"time\":1,\ndata:\"data\":1}\n\n",
		"other fields":     "id: 7\nevent: message\nnews: none\nretry\n" + messageEvent + "\n: a comment\n\n",
	} {
		contents, err := decodeEvents(stream)
		require.ErrorIs(t, err, io.EOF, name)
		last := contents[len(contents)-1]
		require.NotNil(t, last.Message, name)
		require.Equal(t, "a@k3:1", last.Message.Position.String(), name)
	}
}

func TestWhatSaysNothingIsNoFrame(t *testing.T) {
	for _, stream := range []string{":\n\n", "\n", "id: 7\n\n", "event: news\ndata: of a kind to come\n\n", "retry: soon\n\n"} {
		contents, err := decodeEvents(stream)
		require.ErrorIs(t, err, io.EOF, stream)
		require.Equal(t, []wire.Content{{}}, contents, stream)
	}
}

func TestAnEndSaysWhenToComeAgain(t *testing.T) {
	const end = `data: {"end":{"status":503,"code":"draining"` // and the rest
	for _, c := range []struct {
		event string
		ms    int64
	}{
		{"retry: 7000\nevent: end\n" + end + "}}\n\n", 7000},
		{"retry: 7000\nevent: end\n" + end + `,"retry_after_ms":9000}}` + "\n\n", 9000},
		{"retry: 7000\n\nevent: end\n" + end + "}}\n\n", 0},
	} {
		contents, _ := decodeEvents(c.event)
		require.Equal(t, c.ms, contents[len(contents)-1].End.RetryAfterMS, c.event)
	}
}

// Whatever byte the stream is cut at, no part of an event is taken for one.
func TestAnEventThatIsCutOffIsNone(t *testing.T) {
	stream := "event: gap\nid: a@k3:4\ndata: " + `{"gap":{"topic":"a","reason":"slow","after":"a@k3:1","position":"a@k3:4"}}` + "\n\n"
	for at := range len(stream) {
		contents, err := decodeEvents(stream[:at])
		require.Empty(t, contents, at)
		require.Equal(t, at == 0, errors.Is(err, io.EOF), at)
	}
}

func TestAnEventIsBounded(t *testing.T) {
	require.Equal(t, wire.MaxFrameBytes, newEventDecoder(nil).most)
	for name, line := range map[string]string{"a line": "x", "many lines": "data: " + strings.Repeat("x", 1<<10) + "\n"} {
		d := newEventDecoder(&endless{text: line})
		d.most = 1 << 16
		_, err := d.Next()
		require.ErrorIs(t, err, errLongEvent, name)
	}
}

// An endless reader repeats its text.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		c := copy(p[n:], e.text[e.at:])
		n, e.at = n+c, (e.at+c)%len(e.text)
	}
	return n, nil
}

func FuzzEvents(f *testing.F) {
	f.Add(messageEvent + "\n\n:\r\revent: end\r\nretry: 5\n\n")
	f.Add("event: hello\ndata: {\"hello\":{\"positions\":[]}}\n\ndata\n\n")
	f.Fuzz(func(t *testing.T, stream string) {
		contents, err := decodeEvents(stream)
		require.Error(t, err)
		again, errAgain := decodeEvents(stream)
		require.Equal(t, contents, again)
		require.Equal(t, err.Error(), errAgain.Error())
	})
}
