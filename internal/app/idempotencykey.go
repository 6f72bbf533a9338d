package app

import (
	"errors"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

var errKeySyntax = errors.New(`Idempotency-Key must be a string in quotes, with \" and \\ for quotes and backslashes, or a bare key without spaces, commas, quotes and backslashes`)

// parseIdempotencyKey reads the value of an Idempotency-Key header: a string in quotes
// (RFC 8941, section 3.3.3) or the bare key. A bare key has no comma: a proxy that joins
// two headers puts one between them.
func parseIdempotencyKey(value string) (id string, err error) {
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
	return id, wire.CheckID(id)
}

// unquote reads a string after its first quote. The last quote must end it.
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
