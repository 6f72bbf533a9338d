package wire

import (
	"fmt"
	"strings"
)

// MaxClientBytes bounds a client's id.
const MaxClientBytes = 64

// CheckClient returns nil if id is a valid client id: 1 to MaxClientBytes ASCII letters,
// digits, '-', '_', '.' and ':'. The error says what to change.
func CheckClient(id string) error {
	allowed := func(c byte) bool { return isSegmentByte(c) || c == '.' || c == ':' }
	return checkBytes("the client's id", id, MaxClientBytes, allowed, "ASCII letters, digits, '-', '_', '.' and ':' are")
}

// MaxIDBytes bounds an idempotency key, which is a message's id.
const MaxIDBytes = 255

// CheckID returns nil if id is a valid idempotency key: 1 to MaxIDBytes of printable ASCII,
// including spaces. The error says what to change.
func CheckID(id string) error {
	allowed := func(c byte) bool { return ' ' <= c && c <= '~' }
	return checkBytes("the idempotency key", id, MaxIDBytes, allowed, "printable ASCII is")
}

func checkBytes(name, s string, most int, allowed func(byte) bool, onlyAllowed string) error {
	if len(s) == 0 || len(s) > most {
		return fmt.Errorf("%s must have 1 to %d bytes; it has %d", name, most, len(s))
	}
	for i := range len(s) {
		if !allowed(s[i]) {
			return fmt.Errorf("%s holds %s: only %s allowed", name, quoteFirst(s[i:]), onlyAllowed)
		}
	}
	return nil
}

var keyQuoter = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// FormatIdempotencyKey returns a valid id as the value of the Idempotency-Key header.
func FormatIdempotencyKey(id string) string { return `"` + keyQuoter.Replace(id) + `"` }
