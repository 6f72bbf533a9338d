package wire

import (
	"errors"
	"fmt"
	"strings"
)

// MaxClientBytes bounds what a client calls itself.
const MaxClientBytes = 64

// CheckClient returns nil if id is what a client may call itself: 1 to
// MaxClientBytes ASCII letters, digits, '-', '_', '.' and ':'. The error says what
// to change.
func CheckClient(id string) error {
	if len(id) == 0 || len(id) > MaxClientBytes {
		return fmt.Errorf("the client's id has %d bytes: 1 to %d are allowed", len(id), MaxClientBytes)
	}
	for i := range len(id) {
		if c := id[i]; !isTokenByte(c) && c != '.' && c != ':' {
			return fmt.Errorf("the client's id holds %q: only ASCII letters, digits, '-', '_', '.' and ':' are allowed", c)
		}
	}
	return nil
}

// MaxIDBytes bounds an idempotency key, which is a message's id.
const MaxIDBytes = 255

// CheckID returns nil if id may be an idempotency key: 1 to MaxIDBytes of printable
// ASCII, spaces among them. The error says what to change.
func CheckID(id string) error {
	if len(id) == 0 || len(id) > MaxIDBytes {
		return fmt.Errorf("the idempotency key has %d bytes: 1 to %d are allowed", len(id), MaxIDBytes)
	}
	for i := range len(id) {
		if c := id[i]; c < ' ' || c > '~' {
			return fmt.Errorf("the idempotency key holds %q: only printable ASCII is allowed", c)
		}
	}
	return nil
}

var errKeySyntax = errors.New(`Idempotency-Key is neither a string in quotes, with \" and \\ for these two, nor a bare one without spaces, commas, quotes and backslashes`)

// ParseIdempotencyKey reads the value of an Idempotency-Key header: a string of RFC
// 8941, section 3.3.3, or the key itself. The key itself has no comma, since two
// headers that a proxy made one would have.
func ParseIdempotencyKey(value string) (id string, err error) {
	inner, quoted := strings.CutPrefix(value, `"`)
	switch {
	case quoted:
		if id, err = unquote(inner); err != nil {
			return "", err
		}
	case strings.ContainsAny(value, ` ,"\`):
		return "", errKeySyntax
	default:
		id = strings.Clone(value) // a substring would keep the whole head
	}
	return id, CheckID(id)
}

// unquote reads a string from behind its first quote to its last, where it ends.
func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			if i != len(s)-1 {
				return "", errKeySyntax
			}
			return b.String(), nil
		case '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", errKeySyntax
			}
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", errKeySyntax
}

var keyQuoter = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// FormatIdempotencyKey returns id, which CheckID has passed, as a header's value.
func FormatIdempotencyKey(id string) string { return `"` + keyQuoter.Replace(id) + `"` }
