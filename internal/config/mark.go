package config

import (
	"net/url"
	"reflect"
	"strings"
)

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

// shown is text, which is f's or was given for it, as people may see it.
func shown(f field, text string) string {
	if f.secret() && text != "" {
		return masked
	}
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted() // it is refused, and not to be logged
	}
	// A password that is not escaped, or an URL without its scheme: not to be logged, too.
	if at := strings.LastIndexByte(text, '@'); at >= 0 && strings.Contains(text[:at], ":") {
		return "xxxxx" + text[at:]
	}
	return text
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
