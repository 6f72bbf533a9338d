package wire

import (
	"errors"
	"fmt"
)

// A fault is what is wrong with a text that names a topic or a position, with the
// code of the problem that it makes.
type fault struct {
	code Code
	text string
}

func (f *fault) Error() string { return f.text }

func faultf(code Code, format string, args ...any) error {
	return &fault{code, fmt.Sprintf(format, args...)}
}

// CodeOf returns the code that goes with an error of CheckTopic, ParsePosition or
// ParseStart (invalid_topic or invalid_position), and "" for any other.
func CodeOf(err error) Code {
	if f, ok := errors.AsType[*fault](err); ok {
		return f.code
	}
	return ""
}
