package config

import (
	"errors"
	"fmt"
	"strings"
)

// An Error is one mistake in the configuration.
type Error struct {
	Where  string // pubsubd.yaml:3, environment variable PUBSUBD_…, flag --…; empty for a default
	Key    string // the setting, or the source if that itself is wrong; may be empty
	Reason string // what is wrong, and what to write instead

	with string // a second setting involved; if Key is a default, its origin counts
}

// Error returns "where: key reason".
func (e *Error) Error() string {
	text := strings.TrimSpace(e.Key + " " + e.Reason)
	if e.Where == "" {
		return text
	}
	return e.Where + ": " + text
}

// isAbout reports whether e is about the setting of that key, or about its section.
func (e *Error) isAbout(key string) bool {
	return e.Key != "" && strings.HasPrefix(key+".", e.Key+".")
}

// mistakes are all mistakes in a configuration.
type mistakes []*Error

// check adds a mistake about a setting, and perhaps a second one, unless ok.
func (m *mistakes) check(ok bool, key, with, reason string, args ...any) {
	if !ok {
		*m = append(*m, &Error{Key: key, with: with, Reason: fmt.Sprintf(reason, args...)})
	}
}

// add adds an *Error.
func (m *mistakes) add(err error) {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		panic("BUG: not an *Error: " + err.Error())
	}
	*m = append(*m, e)
}

// join returns one error for all of them, or nil.
func (m mistakes) join() error {
	errs := make([]error, len(m))
	for i, e := range m {
		errs[i] = e
	}
	return errors.Join(errs...)
}
