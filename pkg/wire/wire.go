// Package wire is what everyone speaks: messages, positions, gaps and problems,
// and the frames that carry them. The daemon, the Go client and the load
// generator share it; PROTOCOL.md beside this file is the same contract for
// clients in other languages, and testdata/ holds the vectors they are held to.
//
// Nothing here does I/O beyond reading frames from an io.Reader, and every value
// but Decoder may be used by many goroutines once made.
package wire

// The media types of answers that are frames.
const (
	NDJSONType       = "application/x-ndjson"
	CBORSequenceType = "application/cbor-seq" // RFC 8742
)
