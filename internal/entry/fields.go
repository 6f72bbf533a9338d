package entry

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Fields reads the fields of a body. After the first error, everything is zero.
type Fields struct {
	body []byte
	err  error
}

// ErrShort says that a body ends within a field.
var ErrShort = errors.New("one of its fields is not complete")

// NewFields returns the fields of a body.
func NewFields(body []byte) *Fields { return &Fields{body: body} }

// Uvarint reads a number of binary.AppendUvarint, at most MaxOffset.
func (f *Fields) Uvarint() uint64 {
	n, length := binary.Uvarint(f.body)
	if length <= 0 || n > MaxOffset || f.take(uint64(length)) == nil {
		f.fail(ErrShort)
		return 0
	}
	return n
}

func (f *Fields) varint() int64 {
	n, length := binary.Varint(f.body)
	if length <= 0 || f.take(uint64(length)) == nil {
		f.fail(ErrShort)
		return 0
	}
	return n
}

func (f *Fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
	f.body = nil
}

// take returns the next bytes of the body.
func (f *Fields) take(n uint64) []byte {
	if n > uint64(len(f.body)) {
		f.fail(ErrShort)
		return nil
	}
	taken := f.body[:n]
	f.body = f.body[n:]
	return taken
}

// Text reads a field of AppendField.
func (f *Fields) Text() string { return string(f.take(f.Uvarint())) }

// Byte reads a byte.
func (f *Fields) Byte() byte {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

// End returns the first error. A body that is longer than its fields is an error.
func (f *Fields) End() error {
	if f.err == nil && len(f.body) > 0 {
		f.err = fmt.Errorf("%d bytes follow its fields", len(f.body))
	}
	return f.err
}
