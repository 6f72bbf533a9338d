package transports

import (
	"bytes"
	"strconv"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A form is how the messages of a test stand in one encoding: bytes that are the
// same in all, and between them the offset, the time and the sequence. Only
// reading such bytes is quicker than comparing them. It is immutable.
type form []piece

// A piece of a form. Text is that of literal alone.
type piece struct {
	kind pieceKind
	text []byte
}

type pieceKind uint8

const (
	literal       pieceKind = iota
	decimalOffset           // a number that something else than a digit follows
	binaryOffset            // CBOR's
	decimalTime             // 13 digits
	binaryTime              // CBOR's
	sequence                // loadtest.SequenceDigits
)

// timeDigits are those of Unix milliseconds from 2001 to 2286.
const timeDigits = 13

func text(s string) piece { return piece{literal, []byte(s)} }

// lineForm is a message as a line of NDJSON.
func lineForm(at wire.Position) form {
	before, after := loadtest.ShortStrings()
	return form{
		text(`{"position":"` + at.Topic + "@" + at.Epoch + ":"), {kind: decimalOffset},
		text(`","time":`), {kind: decimalTime},
		text(`,"data":` + before), {kind: sequence},
		text(after + "}\n"),
	}
}

// eventForm is a message as an event of an event stream.
func eventForm(at wire.Position) form {
	line := lineForm(at)
	id := form{text("id: " + at.Topic + "@" + at.Epoch + ":"), {kind: decimalOffset}}
	line[0] = text("\ndata: " + string(line[0].text))
	line[len(line)-1] = text(string(line[len(line)-1].text) + "\n")
	return append(id, line...)
}

// itemForm is a message as an item of a CBOR sequence.
func itemForm(at wire.Position) form {
	start := append([]byte{0x89, 0x00}, cborText(at.Topic)...) // an array of nine; a message
	before, after := cborStrings()
	return form{
		{literal, append(start, cborText(at.Epoch)...)}, {kind: binaryOffset},
		{kind: binaryTime},
		{literal, append([]byte{cborNull}, before...)}, {kind: sequence},
		{literal, append(after, cborNull, cborNull)},
	}
}

// cborStrings is loadtest.ShortStrings in CBOR.
func cborStrings() (before, after []byte) {
	first, rest := loadtest.ShortStrings()
	words := bytes.Split([]byte(rest), []byte(`"`)) // "", ",", "string 1", ",", "string 2", …
	before = cborHead(nil, cborArray, uint64(len(words)/2))
	mark := first[len(`["`):]
	before = cborHead(before, cborString, uint64(len(mark)+loadtest.SequenceDigits))
	for i := 2; i < len(words); i += 2 {
		after = append(after, cborText(string(words[i]))...)
	}
	return append(before, mark...), after
}

// append appends the message to b.
func (f form) append(b []byte, m seen) []byte {
	for i := range f {
		switch p := &f[i]; p.kind {
		case literal:
			b = append(b, p.text...)
		case decimalOffset:
			b = strconv.AppendUint(b, m.offset, 10)
		case binaryOffset:
			b = cborHead(b, cborUnsigned, m.offset)
		case decimalTime:
			b = appendPadded(b, m.time, timeDigits)
		case binaryTime:
			b = cborHead(b, cborUnsigned, m.time)
		case sequence:
			b = appendPadded(b, uint64(m.sequence), loadtest.SequenceDigits)
		}
	}
	return b
}

func appendPadded(b []byte, n uint64, digits int) []byte {
	s := strconv.FormatUint(n, 10)
	for range digits - len(s) {
		b = append(b, '0')
	}
	return append(b, s...)
}

// A seen is what a message of a form says.
type seen struct {
	offset   uint64
	time     uint64
	sequence int
}

// Results of match other than a length.
const (
	incomplete = 0
	different  = -1
)

// match reads the message that b begins with, and returns its length; incomplete
// if b may be the beginning of one, different if it is not.
func (f form) match(b []byte) (m seen, length int) {
	rest, known := b, false
	for i := range f {
		n := 0
		switch p := &f[i]; p.kind {
		case literal:
			n = matchText(rest, p.text)
		case decimalOffset, binaryOffset:
			var offset uint64
			if offset, n = readOffset(p.kind, rest); n > 0 && known && offset != m.offset {
				return m, different
			}
			m.offset, known = offset, true
		case decimalTime:
			m.time, n = readDigits(rest, timeDigits)
		case binaryTime:
			m.time, n = readUnsigned(rest)
		case sequence:
			var number uint64
			number, n = readDigits(rest, loadtest.SequenceDigits)
			m.sequence = int(number)
		}
		if n <= 0 {
			return m, n
		}
		rest = rest[n:]
	}
	return m, len(b) - len(rest)
}

func matchText(b, text []byte) int {
	switch {
	case len(b) < len(text) && bytes.HasPrefix(text, b):
		return incomplete
	case !bytes.HasPrefix(b, text):
		return different
	}
	return len(text)
}

// readDigits reads exactly so many.
func readDigits(b []byte, digits int) (n uint64, length int) {
	for _, c := range b[:min(digits, len(b))] {
		if c -= '0'; c > 9 {
			return 0, different
		}
		n = n*10 + uint64(c)
	}
	if len(b) < digits {
		return 0, incomplete
	}
	return n, digits
}

// mostOffsetDigits are those of the largest offset, 2^53-1.
const mostOffsetDigits = 16

func readOffset(kind pieceKind, b []byte) (offset uint64, length int) {
	if kind == binaryOffset {
		return readUnsigned(b)
	}
	for i, c := range b {
		if c -= '0'; c > 9 {
			if i == 0 {
				return 0, different
			}
			return offset, i
		}
		if i == mostOffsetDigits || i > 0 && offset == 0 {
			return 0, different
		}
		offset = offset*10 + uint64(c)
	}
	return 0, incomplete
}
