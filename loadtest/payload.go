package loadtest

import (
	"bytes"
	"strconv"
)

// stringsPerMessage is what the articles' message had: "20 short strings".
const stringsPerMessage = 20

// A numberedMessage is a JSON array of short strings, the first of which is the
// sequence: ["#000017","string 1",…,"string 19"].
type numberedMessage struct{ rest []byte }

func newNumberedMessage() numberedMessage {
	var rest []byte
	for i := 1; i < stringsPerMessage; i++ {
		rest = append(rest, `,"string `...)
		rest = strconv.AppendInt(rest, int64(i), 10)
		rest = append(rest, '"')
	}
	return numberedMessage{rest: append(rest, ']')}
}

const sequenceDigits = 6

func (m numberedMessage) make(sequence int) []byte {
	b := append(make([]byte, 0, len(m.rest)+16), `["#`...)
	b = appendPadded(b, int64(sequence), sequenceDigits)
	b = append(b, '"')
	return append(b, m.rest...)
}

// read returns the sequence of exactly such a message.
func (m numberedMessage) read(payload []byte) (int, bool) {
	b, ok := bytes.CutPrefix(payload, []byte(`["#`))
	if !ok || len(b) < sequenceDigits || b[sequenceDigits] != '"' || !bytes.Equal(b[sequenceDigits+1:], m.rest) {
		return 0, false
	}
	n, ok := readDigits(b[:sequenceDigits])
	return int(n), ok
}

// appendPadded appends n with leading zeros.
func appendPadded(b []byte, n int64, digits int) []byte {
	s := strconv.FormatInt(n, 10)
	for range digits - len(s) {
		b = append(b, '0')
	}
	return append(b, s...)
}

func readDigits(b []byte) (int64, bool) {
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}
