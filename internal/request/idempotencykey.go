package request

import (
	"errors"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

var errKeySyntax = errors.New(`Idempotency-Key must be a quoted string, with \" and \\ as escapes, or a bare key without spaces, commas, quotes and backslashes`)

// parseIdempotencyKey reads the value of an Idempotency-Key header: a string in quotes
// (RFC 8941, section 3.3.3) or the bare key. A bare key has no comma: a proxy that joins
// two headers puts one between them. The key shares no memory with the value, which may be
// a part of the whole head.
func parseIdempotencyKey(value string) (string, error) {
	inner, quoted := strings.CutPrefix(value, `"`)
	if !quoted {
		if strings.ContainsAny(value, ` ,"\`) {
			return "", errKeySyntax
		}
		return strings.Clone(value), wire.CheckID(value)
	}
	inner, ends := strings.CutSuffix(inner, `"`)
	if !ends || strings.ContainsAny(escapes.Replace(inner), `"\`) {
		return "", errKeySyntax
	}
	id := strings.Clone(unescape.Replace(inner))
	return id, wire.CheckID(id)
}

var (
	escapes  = strings.NewReplacer(`\\`, "", `\"`, "") // removes them
	unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
)
