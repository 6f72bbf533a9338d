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
	if len(id) == 0 || len(id) > MaxClientBytes {
		return fmt.Errorf("the client's id must have 1 to %d bytes; it has %d", MaxClientBytes, len(id))
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

// CheckID returns nil if id is a valid idempotency key: 1 to MaxIDBytes of printable ASCII,
// including spaces. The error says what to change.
func CheckID(id string) error {
	if len(id) == 0 || len(id) > MaxIDBytes {
		return fmt.Errorf("the idempotency key must have 1 to %d bytes; it has %d", MaxIDBytes, len(id))
	}
	for i := range len(id) {
		if c := id[i]; c < ' ' || c > '~' {
			return fmt.Errorf("the idempotency key holds %q: only printable ASCII is allowed", c)
		}
	}
	return nil
}

var keyQuoter = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// FormatIdempotencyKey returns a valid id as the value of the Idempotency-Key header.
func FormatIdempotencyKey(id string) string { return `"` + keyQuoter.Replace(id) + `"` }
