package wire

// MaxClientBytes bounds a client's id.
const MaxClientBytes = 64

// CheckClient returns nil if id may be a client's own id: 1 to MaxClientBytes of
// ASCII letters, digits and "-_.:". The error says what to change.
func CheckClient(id string) error {
	if id == "" || len(id) > MaxClientBytes {
		return faultf(CodeInvalidRequest, "a client's id has 1 to %d characters, not %d", MaxClientBytes, len(id))
	}
	for i := 0; i < len(id); i++ {
		if c := id[i]; !isTokenByte(c) && c != '.' && c != ':' {
			return faultf(CodeInvalidRequest, "the client's id %q holds %q: ASCII letters, digits and -_.: are allowed", id, c)
		}
	}
	return nil
}
