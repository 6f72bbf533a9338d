package client

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"bufio"

	"github.com/stretchr/testify/require"
)

// answers records what a Parser says.
type answers struct{ got []answered }

type answered struct {
	status int
	body   string
	ended  bool
}

func (a *answers) Head(h Head) error {
	a.got = append(a.got, answered{status: h.Status})
	return nil
}

func (a *answers) Body(part []byte) error {
	a.got[len(a.got)-1].body += string(part)
	return nil
}

func (a *answers) End() error {
	a.got[len(a.got)-1].ended = true
	return nil
}

// parseIn feeds text in pieces of the given size, as answers to n requests.
func parseIn(text string, size, n int) ([]answered, error) {
	p := Parser{heads: &headCache{}, expected: n}
	a := &answers{}
	for b := []byte(text); len(b) > 0; {
		piece := bytes.Clone(b[:min(size, len(b))])
		b = b[len(piece):]
		if err := p.Feed(piece, a); err != nil {
			return a.got, err
		}
		clear(piece) // whatever is kept of it must be a copy
	}
	return a.got, nil
}

const (
	lengthAnswer  = "HTTP/1.1 200 OK\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Type: application/x-ndjson\r\nContent-Length: 5\r\n\r\nhello"
	emptyAnswer   = "HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n"
	chunkedAnswer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nConnection: keep-alive\r\n\r\n3\r\nhel\r\n00A\r\n lo there!\r\n0\r\n\r\n"
	noContent     = "HTTP/1.1 204 \r\n\r\n"
)

func TestAnswersInPiecesOfEverySize(t *testing.T) {
	text := lengthAnswer + emptyAnswer + chunkedAnswer + lengthAnswer + lengthAnswer + noContent
	want := []answered{
		{200, "hello", true}, {200, "", true}, {200, "hel lo there!", true},
		{200, "hello", true}, {200, "hello", true}, {204, "", true},
	}
	for size := 1; size <= len(text); size++ {
		got, err := parseIn(text, size, len(want))
		require.NoError(t, err, "pieces of %d", size)
		require.Equal(t, want, got, "pieces of %d", size)
	}
}

func TestAnswersCutAnywhereAreIncomplete(t *testing.T) {
	for _, text := range []string{lengthAnswer, chunkedAnswer, emptyAnswer} {
		for cut := 1; cut < len(text); cut++ {
			got, err := parseIn(text[:cut], cut, 1)
			require.NoError(t, err, "%q", text[:cut])
			require.True(t, len(got) == 0 || !got[0].ended, "%q", text[:cut])
		}
	}
}

func TestOddAnswersAreErrors(t *testing.T) {
	head := func(lines ...string) string {
		return "HTTP/1.1 200 OK\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	chunked := func(rest string) string { return head("Transfer-Encoding: chunked") + rest }
	for name, text := range map[string]string{
		"HTTP/1.0":            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
		"no status":           "HTTP/1.1 OK\r\nContent-Length: 0\r\n\r\n",
		"no space":            "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
		"interim":             "HTTP/1.1 100 Continue\r\n\r\n",
		"not modified":        "HTTP/1.1 304 Not Modified\r\n\r\n",
		"204 with length":     "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
		"no framing":          head("Content-Type: text/plain"),
		"both framings":       head("Content-Length: 0", "Transfer-Encoding: chunked"),
		"two lengths":         head("Content-Length: 0", "Content-Length: 0"),
		"signed length":       head("Content-Length: +1"),
		"list of lengths":     head("Content-Length: 1, 1"),
		"huge length":         head("Content-Length: 1234567890123456"),
		"other coding":        head("Transfer-Encoding: gzip, chunked"),
		"two codings":         head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
		"compressed":          head("Content-Length: 0", "Content-Encoding: gzip"),
		"closing":             head("Content-Length: 0", "Connection: close"),
		"folded header":       head("Content-Length: 0", " 5"),
		"space before colon":  head("Content-Length : 0"),
		"no colon":            head("Content-Length: 0", "hello"),
		"control byte":        head("Content-Length: 0", "X: a\x01b"),
		"bare line feed":      "HTTP/1.1 200 OK\nContent-Length: 0\n\r\n\r\n",
		"endless head":        head("X: " + strings.Repeat("a", maxHeadBytes)),
		"bytes beyond":        emptyAnswer + "x",
		"chunk extension":     chunked("3;a=b\r\nhel\r\n0\r\n\r\n"),
		"chunk size empty":    chunked("\r\n\r\n"),
		"chunk size huge":     chunked("1000000000000000\r\n"),
		"chunk size negative": chunked("-1\r\n"),
		"chunk line endless":  chunked(strings.Repeat("0", 40)),
		"chunk too long":      chunked("3\r\nhello\r\n0\r\n\r\n"),
		"trailer":             chunked("0\r\nX: y\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(text); size += 1 + size/200 { // every one, but of an endless text
				_, err := parseIn(text, size, 1)
				require.Error(t, err, "pieces of %d", size)
			}
		})
	}
}

// An answer that unexpected bytes must not wait to be taken for the next one.
func TestUnaskedBytesAreAnError(t *testing.T) {
	_, err := parseIn("H", 1, 0)
	require.ErrorContains(t, err, "unexpected bytes")
}

// FuzzParser holds the Parser to itself in pieces, and to net/http: whatever it
// takes, net/http reads the same.
func FuzzParser(f *testing.F) {
	for _, text := range []string{lengthAnswer, emptyAnswer, chunkedAnswer, noContent, lengthAnswer + chunkedAnswer} {
		f.Add([]byte(text), uint8(1))
		f.Add([]byte(text), uint8(7))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		const requests = 3
		whole, wholeErr := parseIn(string(text), len(text)+1, requests)
		pieces, piecesErr := parseIn(string(text), int(size)+1, requests)
		require.Equal(t, wholeErr == nil, piecesErr == nil, "%v, in pieces %v", wholeErr, piecesErr)
		require.Equal(t, ended(whole), ended(pieces))
		in := bufio.NewReader(bytes.NewReader(text))
		for i, a := range ended(whole) {
			status, body, err := netHTTP(in)
			require.NoError(t, err, "answer %d", i)
			require.Equal(t, a.status, status)
			require.Equal(t, a.body, body)
		}
	})
}

func ended(all []answered) []answered {
	complete := []answered{}
	for _, a := range all {
		if a.ended {
			complete = append(complete, a)
		}
	}
	return complete
}

func netHTTP(in *bufio.Reader) (int, string, error) {
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, "", fmt.Errorf("net/http: %w", err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// A parser that asked for compressed answers says which are, and passes them on as
// they came; one that did not takes none.
func TestCompressedAnswersAreTakenByWhoAskedForThem(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"
	heads := func(gzip bool, text string) (*headsOf, error) {
		p, h := NewParser(gzip), &headsOf{}
		p.Expect()
		return h, p.Feed([]byte(text), h)
	}
	h, err := heads(true, answer)
	require.NoError(t, err)
	require.True(t, h.head.Gzip)
	h, err = heads(true, lengthAnswer)
	require.NoError(t, err)
	require.False(t, h.head.Gzip)
	for _, c := range []struct {
		gzip bool
		text string
	}{
		{false, answer},
		{true, strings.Replace(answer, "gzip", "br", 1)},
		{true, strings.Replace(answer, "gzip", "gzip, gzip", 1)},
		{true, strings.Replace(answer, "Content-Length", "Content-Encoding: gzip\r\nContent-Length", 1)},
	} {
		_, err = heads(c.gzip, c.text)
		require.ErrorContains(t, err, "content coding", c.text)
	}
}

// headsOf keeps the head alone.
type headsOf struct{ head Head }

func (h *headsOf) Head(head Head) error { h.head = head; return nil }
func (h *headsOf) Body([]byte) error    { return nil }
func (h *headsOf) End() error           { return nil }
