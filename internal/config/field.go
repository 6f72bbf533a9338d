package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A field is one field of a Config as text, with its bounds.
type field struct {
	target  any                     // pointer to the field
	kind    string                  // one word for --help
	form    string                  // the kind and unusual bounds, for SETTINGS.md, which explains the kinds
	allowed string                  // what a user may write, in words
	set     func(text string) error // reads the text; the error says what to write instead
	check   func() error            // returns the same error for the field's value
	text    func() string           // writes the value as set reads it; "" if nothing was given

	isList     bool // a list, written with commas
	isJSON     bool // JSON, which a YAML file may have as lists and mappings
	isSecret   bool // never shown: not by print, in logs or in errors
	isOptional bool // the zero value means that nothing was given, so that another setting applies
	restart    bool // changes only by a restart
}

// values says how values of one type are read, written and bounded.
type values[T any] struct {
	kind, allowed string
	form          string // "": the kind
	parse         func(string) (T, error)
	format        func(T) string
	check         func(T) error // nil: every value is valid; may return errBounds
}

// errBounds is the error of a value for which naming the allowed values says enough.
var errBounds = errors.New("")

func within(ok bool) error {
	if ok {
		return nil
	}
	return errBounds
}

func (v values[T]) field(to *T) *field {
	check := func(value T, err error) error {
		switch {
		case err != nil:
			err = errBounds
		case v.check != nil:
			err = v.check(value)
		}
		if err == nil {
			return nil
		}
		return errors.New(strings.TrimPrefix(err.Error()+"; want "+v.allowed, "; "))
	}
	f := &field{target: to, kind: v.kind, form: cmp.Or(v.form, v.kind), allowed: v.allowed}
	f.set = func(text string) error {
		value, err := v.parse(text)
		if err = check(value, err); err == nil {
			*to = value
		}
		return err
	}
	f.check = func() error {
		if !f.given() {
			return nil
		}
		return check(*to, nil)
	}
	f.text = func() string {
		if !f.given() {
			return ""
		}
		return v.format(*to)
	}
	return f
}

// given reports whether the field has a value of its own.
func (f *field) given() bool {
	return !f.isOptional || !reflect.ValueOf(f.target).Elem().IsZero()
}

// restart marks a field that a reload does not change.
func restart(f *field) *field { f.restart = true; return f }

// optional marks a field that may be left out. Its zero value means that nothing was given.
// A user can write that value only for a bool, where it is the default.
func optional(f *field) *field { f.isOptional = true; return f }

// masked stands for a secret.
const masked = "(secret)"

// flagKind returns the word for --help. Of a word it returns the choices.
func (f *field) flagKind() string {
	if f.kind == "word" {
		return strings.NewReplacer(", ", "|", " or ", "|").Replace(f.form)
	}
	return f.kind
}

// shown returns a text of f as logs and people may see it.
func (f *field) shown(text string) string {
	if f.isSecret && text != "" {
		return masked
	}
	return text
}

// shownRefused is shown for a text that f refused. It masks what may be a password,
// even in a URL that has no scheme or does not parse.
func (f *field) shownRefused(text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		text = u.Redacted()
	} else if at := strings.LastIndexByte(text, '@'); at >= 0 && strings.Contains(text[:at], ":") && checkServerURL(text) != nil {
		text = "xxxxx" + text[at:]
	}
	return f.shown(text)
}

// number bounds a whole number.
type number struct {
	least, most int // most 0: no bound
	bytes       bool

	// word, if any, stands for the value means, which has no other text. The packages
	// take zero for their default, so zero itself is never written as a number. A number that has
	// a word may have an older one, which is still read.
	word, older string
	means       int
}

func (n number) field(to *int) *field {
	v := values[int]{kind: "count", allowed: "a whole number", parse: strconv.Atoi, format: strconv.Itoa}
	if n.bytes {
		v = values[int]{kind: "bytes", allowed: "bytes, such as 4096, 64KiB or 1MiB,", parse: parseSize, format: formatSize}
	}
	parse, format := v.parse, v.format
	v.form = v.kind
	switch {
	case n.most > 0:
		bounds := " from " + format(n.least) + " to " + format(n.most)
		v.allowed, v.form = v.allowed+bounds, v.form+bounds
	default:
		n.most = math.MaxInt
		v.allowed += " of at least " + format(n.least)
		if n.least > 1 {
			v.form += " of at least " + format(n.least)
		}
	}
	if n.word != "" {
		v.allowed, v.form = v.allowed+", or "+n.word, v.form+", or "+n.word
	}
	isWord := func(i int) bool { return n.word != "" && i == n.means }
	v.check = func(i int) error { return within(n.least <= i && i <= n.most || isWord(i)) }
	v.parse = func(text string) (int, error) {
		if text != "" && (text == n.word || text == n.older) {
			return n.means, nil
		}
		i, err := parse(text)
		if isWord(i) {
			err = errBounds
		}
		return i, err
	}
	v.format = func(i int) string {
		if isWord(i) {
			return n.word
		}
		return format(i)
	}
	return v.field(to)
}

// count is a whole number of at least 1.
func count(to *int) *field { return number{least: 1}.field(to) }

// size is a number of bytes, of at least 1.
func size(to *int) *field { return number{least: 1, bytes: true}.field(to) }

// units of sizes, the largest first. MB is not one: it may mean 1000² or 1024² bytes.
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
		return 0, strconv.ErrRange
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

func duration(to *time.Duration, least time.Duration) *field {
	form := "duration"
	switch least {
	case time.Millisecond:
	case 0:
		form += ", or 0s"
	default:
		form += " of at least " + least.String()
	}
	return values[time.Duration]{
		kind: "duration", form: form, allowed: fmt.Sprintf("a duration, such as 250ms, 90s or 2m, of at least %s", least),
		parse: time.ParseDuration, format: time.Duration.String,
		check: func(d time.Duration) error { return within(d >= least) },
	}.field(to)
}

func truth(to *bool) *field {
	return values[bool]{kind: "bool", allowed: "true or false", parse: strconv.ParseBool, format: strconv.FormatBool}.field(to)
}

// rate is how often something may happen; by default it is not limited.
func rate(to *limit.Rate) *field {
	return values[limit.Rate]{
		kind: "rate", form: "rate, or off", allowed: "a rate, such as 100/s, 30/m or 100/s burst 500, from 1/h to 1000000000/s, or off",
		parse: limit.ParseRate, format: limit.Rate.String,
		check: func(r limit.Rate) error { return within(r.Valid()) },
	}.field(to)
}

// word is one of some words.
func word[T ~string](to *T, words ...T) *field {
	return text(to, values[T]{
		kind: "word", form: enumerate(words, "or"), allowed: enumerate(words, "or"),
		check: func(s T) error { return within(slices.Contains(words, s)) },
	})
}

// text is a field that is written as it is.
func text[T ~string](to *T, v values[T]) *field {
	v.parse = func(s string) (T, error) { return T(s), nil }
	v.format = func(s T) string { return string(s) }
	return v.field(to)
}

// path is the name of a file; empty means none.
func path(to *string) *field {
	return text(to, values[string]{kind: "file", allowed: "a path"})
}

// pattern is the name of a topic or a pattern.
func pattern(to *string) *field {
	return text(to, values[string]{
		kind: "pattern", allowed: "the name of a topic, or a pattern, in which * matches one segment and a last > matches the rest: chat.* or prices.>",
		check: wire.CheckPattern,
	})
}

func hookSecret(to *string) *field {
	f := values[string]{
		kind: "secret", allowed: "24 bytes or more: text, or whsec_ and base64, as `openssl rand -base64 32` writes it",
		parse: func(s string) (string, error) { // without what an editor adds to the file that it comes from
			return strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(s, ByteOrderMark), "\n"), "\r"), nil
		},
		format: strings.Clone,
		check: func(s string) error {
			if s == "" {
				return nil
			}
			_, err := hook.KeyOf(s)
			return err
		},
	}.field(to)
	f.isSecret = true
	return f
}

// list describes a list of comma-separated values.
type list[T comparable] struct {
	kind, allowed string
	form          string // "": the kind
	least, most   int    // how many values it may have
	parse         func(string) (T, error)
	format        func(T) string
	check         func(one T, alone bool) error // alone: it is the only value
}

func (l list[T]) field(to *[]T) *field {
	f := values[[]T]{kind: l.kind, allowed: l.allowed, form: l.form, parse: l.parseAll, format: l.formatAll, check: l.checkAll}.field(to)
	f.isList = true
	return f
}

func (l list[T]) parseAll(text string) (list []T, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		value, err := l.parse(strings.TrimSpace(one))
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, nil
}

func (l list[T]) formatAll(list []T) string {
	texts := make([]string, len(list))
	for i, one := range list {
		texts[i] = l.format(one)
	}
	return strings.Join(texts, ",")
}

func (l list[T]) checkAll(list []T) error {
	switch {
	case len(list) < l.least:
		return fmt.Errorf("%d are too few", len(list))
	case len(list) > l.most:
		return fmt.Errorf("%d are too many", len(list))
	}
	for i, one := range list {
		if err := l.check(one, len(list) == 1); err != nil {
			return err
		}
		if slices.Contains(list[:i], one) {
			return fmt.Errorf("%q is listed twice", l.format(one))
		}
	}
	return nil
}

// maxHookTopics bounds the patterns of a hook, which are matched for each message.
const maxHookTopics = 100

// patterns is a list of patterns and names of topics.
func patterns(to *[]string) *field {
	return texts(to, list[string]{
		kind: "patterns", least: 1, most: maxHookTopics,
		allowed: fmt.Sprintf("names of topics, or patterns such as chat.* or prices.>, from 1 to %d, separated by commas", maxHookTopics),
		check:   func(pattern string, _ bool) error { return wire.CheckPattern(pattern) },
	})
}

// texts is a list of texts that are written as they are.
func texts(to *[]string, l list[string]) *field {
	l.parse, l.format = func(s string) (string, error) { return s, nil }, strings.Clone
	return l.field(to)
}

// enumerate returns "a", "a or b", or "a, b or c" for the conjunction "or".
func enumerate[T ~string](words []T, conjunction string) string {
	text := string(words[0])
	if len(words) == 1 {
		return text
	}
	for _, w := range words[1 : len(words)-1] {
		text += ", " + string(w)
	}
	return text + " " + conjunction + " " + string(words[len(words)-1])
}
