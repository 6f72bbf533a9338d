package wire

import _ "embed"

// Protocol is the text of PROTOCOL.md, the specification of the protocol.
//
//go:embed PROTOCOL.md
var Protocol string

// Clients is the text of CLIENTS.md, the guide for authors of clients.
//
//go:embed CLIENTS.md
var Clients string
