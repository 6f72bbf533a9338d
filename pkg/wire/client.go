package wire

import "fmt"

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
