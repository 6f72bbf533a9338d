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

// DidYouMean suggests, for an error, the known name that is nearest to an unknown one, which is misspelt or
// lacks a part, as in age for history.age. It returns "" if none is near. It ignores case
// and the prefix, which all names have.
func DidYouMean(name, prefix string, known []string) string {
	name = strings.ToLower(strings.TrimPrefix(name, prefix))
	best, bestAt := "", max(2, len(name)/3)+1
	for _, k := range known {
		low := strings.ToLower(strings.TrimPrefix(k, prefix))
		d := editDistance(name, low)
		switch {
		case strings.HasSuffix(low, "."+name):
			d = min(d, 1)
		case isPart(name, low):
			d = min(d, 2)
		}
		if d < bestAt {
			best, bestAt = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// isPart reports whether whole begins or ends with name and a separator.
func isPart(name, whole string) bool {
	const separators = ".-_"
	before, ends := strings.CutSuffix(whole, name)
	after, begins := strings.CutPrefix(whole, name)
	return name != "" && (ends && strings.TrimRight(before, separators) != before || begins && strings.TrimLeft(after, separators) != after)
}

// editDistance returns how many bytes must be inserted, deleted or replaced to turn
// a into b (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a's beginning so far to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
