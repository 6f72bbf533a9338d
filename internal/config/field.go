package config

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A field is one field of a Config as text, with its default and its bounds.
type field interface {
	set(text string) error // an error says what the text should be
	check() error          // the same error, for the field as it is
	reset()                // to the default
	text() string          // as set would read it
	kind() string          // one word for --help
	allowed() string       // what it may be, in words
	list() bool            // of texts without commas, which separate them
	target() any           // pointer to the field
	said() bool            // it has a value of its own
	live() bool            // it may change while the daemon runs
	secret() bool          // nobody is shown its text
}

// fieldOf is the only implementation of field: how values of one type are read,
// written and bounded.
type fieldOf[T any] struct {
	to     *T
	def    T
	name   string // of the kind
	may    string // what it may be, in words
	parse  func(string) (T, error)
	format func(T) string
	valid  func(T) bool
	wrong  func(T) string // which part is not valid, and why; nil: it has none
	isList bool
}

func (f fieldOf[T]) set(text string) error {
	v, err := f.parse(text)
	if err != nil {
		return errors.New("want " + f.may)
	}
	if err := f.judge(v); err != nil {
		return err
	}
	*f.to = v
	return nil
}

func (f fieldOf[T]) check() error { return f.judge(*f.to) }

func (f fieldOf[T]) judge(v T) error {
	switch {
	case f.valid(v):
		return nil
	case f.wrong != nil:
		return fmt.Errorf("%s; want %s", f.wrong(v), f.may)
	}
	return errors.New("want " + f.may)
}

func (f fieldOf[T]) reset()          { *f.to = f.def }
func (f fieldOf[T]) text() string    { return f.format(*f.to) }
func (f fieldOf[T]) kind() string    { return f.name }
func (f fieldOf[T]) allowed() string { return f.may }
func (f fieldOf[T]) list() bool      { return f.isList }
func (f fieldOf[T]) target() any     { return f.to }
func (f fieldOf[T]) said() bool      { return true }
func (f fieldOf[T]) live() bool      { return false }
func (f fieldOf[T]) secret() bool    { return false }

// count is a whole number from 1 to most. Zero is left out, since it would mean
// the default to the packages' Configs.
func count(to *int, def, most int) field {
	return fieldOf[int]{
		to: to, def: def, name: "count",
		may:    "a whole number " + upTo(strconv.Itoa, most),
		parse:  strconv.Atoi,
		format: strconv.Itoa,
		valid:  func(n int) bool { return 1 <= n && n <= most },
	}
}

// size is a count of bytes, which may be written in units.
func size(to *int, def, most int) field {
	return fieldOf[int]{
		to: to, def: def, name: "bytes",
		may:    "bytes, such as 4096, 64KiB or 1MiB, " + upTo(formatSize, most),
		parse:  parseSize,
		format: formatSize,
		valid:  func(n int) bool { return 1 <= n && n <= most },
	}
}

// sizeOrOff is a size from least on, or "off", which is -1: zero would mean the
// default to the packages' Configs.
func sizeOrOff(to *int, def, least int) field {
	const off, never = "off", -1
	return fieldOf[int]{
		to: to, def: def, name: "bytes",
		may: "bytes, such as 4096, 64KiB or 1MiB, of at least " + formatSize(least) + ", or off",
		parse: func(s string) (int, error) {
			if s == off {
				return never, nil
			}
			return parseSize(s)
		},
		format: func(n int) string {
			if n == never {
				return off
			}
			return formatSize(n)
		},
		valid: func(n int) bool { return n >= least || n == never },
	}
}

// sizeOrAuto is a size, or "auto", the default, which is 0: the daemon chooses.
func sizeOrAuto(to *int) field {
	const auto, chosen = "auto", 0
	return fieldOf[int]{
		to: to, def: chosen, name: "bytes",
		may: "bytes, such as 4096, 64KiB or 1MiB, of at least 1, or auto",
		parse: func(s string) (int, error) {
			if s == auto {
				return chosen, nil
			}
			n, err := parseSize(s)
			if err == nil && n < 1 {
				err = errors.New("too small")
			}
			return n, err
		},
		format: func(n int) string {
			if n == chosen {
				return auto
			}
			return formatSize(n)
		},
		valid: func(n int) bool { return n >= chosen },
	}
}

func upTo(format func(int) string, most int) string {
	if most == math.MaxInt {
		return "of at least 1"
	}
	return "from 1 to " + format(most)
}

func duration(to *time.Duration, def, least time.Duration) field {
	return fieldOf[time.Duration]{
		to: to, def: def, name: "duration",
		may:    fmt.Sprintf("a duration, such as 250ms, 90s or 2m, of at least %s", least),
		parse:  time.ParseDuration,
		format: time.Duration.String,
		valid:  func(d time.Duration) bool { return d >= least },
	}
}

func truth(to *bool, def bool) field {
	return fieldOf[bool]{
		to: to, def: def, name: "bool",
		may:    "true or false",
		parse:  strconv.ParseBool,
		format: strconv.FormatBool,
		valid:  func(bool) bool { return true },
	}
}

// choice takes the default or one of the others.
func choice[T ~string](to *T, def T, others ...T) field {
	among := []string{string(def)}
	for _, other := range others {
		among = append(among, string(other))
	}
	return fieldOf[T]{
		to: to, def: def, name: "word",
		may:    orList(among),
		parse:  func(s string) (T, error) { return T(s), nil },
		format: func(s T) string { return string(s) },
		valid:  func(s T) bool { return slices.Contains(among, string(s)) },
	}
}

// orList is "a, b or c", andList "a, b and c".
func orList(of []string) string  { return listed(of, " or ") }
func andList(of []string) string { return listed(of, " and ") }

func listed(of []string, last string) string {
	n := len(of) - 1
	return strings.Join(of[:n], ", ") + last + of[n]
}

// address is a host:port to listen on.
func address(to *string, def string) field {
	return fieldOf[string]{
		to: to, def: def, name: "host:port",
		may:    "host:port, such as " + def + ", [::1]:8080 or :0",
		parse:  asIs,
		format: func(s string) string { return s },
		valid:  isAddress,
	}
}

// maybeAddress is a host:port to listen on, or nothing.
func maybeAddress(to *string) field {
	return fieldOf[string]{
		to: to, name: "host:port",
		may:    "host:port, such as 127.0.0.1:8082, or nothing",
		parse:  asIs,
		format: func(s string) string { return s },
		valid:  func(s string) bool { return s == "" || isAddress(s) },
	}
}

// path is a file's; empty is none.
func path(to *string) field {
	return fieldOf[string]{
		to: to, name: "file",
		may:    "a file's path",
		parse:  asIs,
		format: func(s string) string { return s },
		valid:  func(string) bool { return true },
	}
}

func asIs(s string) (string, error) { return s, nil }

// units of sizes, the largest first. Powers of 1000 are left out: who writes MB
// may mean either.
var units = []struct {
	suffix string
	bytes  int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// parseSize reads a plain number of bytes, or one of KiB, MiB or GiB.
func parseSize(text string) (int, error) {
	digits, unit := text, 1
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			digits, unit = rest, u.bytes
			break
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0, err
	}
	if n > math.MaxInt/unit || n < 0 {
		return 0, errors.New("out of range")
	}
	return n * unit, nil
}

// formatSize writes n in the largest unit that keeps it whole.
func formatSize(n int) string {
	for _, u := range units {
		if n != 0 && n%u.bytes == 0 {
			return strconv.Itoa(n/u.bytes) + u.suffix
		}
	}
	return strconv.Itoa(n)
}

// live marks a setting that may change while the daemon runs. The others wait for a
// restart.
func live(f field) field { return liveField{f} }

type liveField struct{ field }

func (liveField) live() bool { return true }

// secret marks a setting that nobody is shown: not in print, in a log or in an error.
func secret(f field) field { return secretField{f} }

type secretField struct{ field }

func (secretField) secret() bool { return true }

// masked stands for a secret.
const masked = "(secret)"

// shown is f's value as people may see it, who may read it back.
func shown(f field, text string) string {
	if f.secret() && text != "" {
		return masked
	}
	return text
}

// shownRefused is what was given for f, and is no value of its, as people may see it: a
// password is not to be logged. It may not be escaped, or its URL have no scheme.
func shownRefused(f field, text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		text = u.Redacted()
	} else if at := strings.LastIndexByte(text, '@'); at >= 0 && strings.Contains(text[:at], ":") && !isHookURL(text) {
		text = "xxxxx" + text[at:]
	}
	return shown(f, text)
}

// optional makes a field's zero value stand for nothing said: some other setting
// counts then. It can only be left out, not be written.
func optional(f field) field { return optionalField{f} }

type optionalField struct{ field }

func (f optionalField) said() bool {
	return !reflect.ValueOf(f.target()).Elem().IsZero()
}

func (f optionalField) check() error {
	if !f.said() {
		return nil
	}
	return f.field.check()
}

func (f optionalField) text() string {
	if !f.said() {
		return ""
	}
	return f.field.text()
}
