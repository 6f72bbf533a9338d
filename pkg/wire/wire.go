// Package wire is the protocol in Go: messages, positions, gaps and problems, and the
// frames that carry them. The daemon, the Go client and the load generator share it.
// PROTOCOL.md in this folder is the specification, CLIENTS.md the guide for authors of
// clients, and testdata has test vectors.
//
// The only I/O is reading frames from an io.Reader. Every value except the decoders may
// be used concurrently.
package wire

import _ "embed"

// The media types of answers that are frames.
const (
	NDJSONType       = "application/x-ndjson"
	CBORSequenceType = "application/cbor-seq" // RFC 8742
)

// Protocol is the text of PROTOCOL.md, the specification of the protocol.
//
//go:embed PROTOCOL.md
var Protocol string

// Clients is the text of CLIENTS.md, the guide for authors of clients.
//
//go:embed CLIENTS.md
var Clients string
