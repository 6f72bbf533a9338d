package wire

import _ "embed"

// Protocol is the text of PROTOCOL.md, the specification of the protocol.
//
//go:embed PROTOCOL.md
var Protocol string
