package loadtest

import (
	"bytes"
	"strconv"
)

// stringsPerMessage is what the articles' message had: "20 short strings".
const stringsPerMessage = 20

// A numberedMessage is JSON of which only the sequence differs.
type numberedMessage struct{ before, after []byte }

const sequenceDigits = 6

// SequenceDigits are those by which messages of ShortStrings differ.
const SequenceDigits = sequenceDigits

// ShortStrings returns what stands before and after the SequenceDigits of the
// articles' message, which is JSON.
func ShortStrings() (before, after string) {
	m := newNumberedMessage()
	return string(m.before), string(m.after)
}

// newNumberedMessage returns the articles' message: an array of short strings, the
// first of which is the sequence: ["#000017","string 1",…,"string 19"].
func newNumberedMessage() numberedMessage {
	after := []byte(`"`)
	for i := 1; i < stringsPerMessage; i++ {
		after = append(after, `,"string `...)
		after = strconv.AppendInt(after, int64(i), 10)
		after = append(after, '"')
	}
	return numberedMessage{before: []byte(`["#`), after: append(after, ']')}
}

// Sizes that a message may be given. The least is the sequence in quotes; the most
// is what a server can be told to take.
const (
	leastMessageBytes = sequenceDigits + 2
	mostMessageBytes  = 8 << 20
)

// newSizedMessage returns a message of so many bytes, at least leastMessageBytes:
// one string, "000017xxx…".
func newSizedMessage(size int) numberedMessage {
	filling := bytes.Repeat([]byte("x"), size-leastMessageBytes)
	return numberedMessage{before: []byte(`"`), after: append(filling, '"')}
}

func (m numberedMessage) make(sequence int) []byte {
	b := append(make([]byte, 0, len(m.before)+sequenceDigits+len(m.after)), m.before...)
	b = appendPadded(b, int64(sequence), sequenceDigits)
	return append(b, m.after...)
}

// read returns the sequence of exactly such a message.
func (m numberedMessage) read(payload []byte) (int, bool) {
	b, ok := bytes.CutPrefix(payload, m.before)
	if !ok || len(b) < sequenceDigits || !bytes.Equal(b[sequenceDigits:], m.after) {
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
