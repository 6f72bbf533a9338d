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
