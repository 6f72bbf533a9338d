package wire

import (
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

var keyQuoter = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// FormatIdempotencyKey returns id, which CheckID has passed, as a header's value.
func FormatIdempotencyKey(id string) string { return `"` + keyQuoter.Replace(id) + `"` }
