package transports

import (
	"slices"
	"strings"
)

// Names of the transports, and of the floors that two of them are compared with.
const (
	Single    = "single"
	Batch     = "batch"
	Multiple  = "multiple"
	Stream    = "stream"
	SSE       = "sse"
	WebSocket = "websocket"
	TCP       = "tcp"

	BareWriter = "bare writer" // TCP's
	BareLoop   = "bare loop"   // Single's
)

// Names of the formats.
const (
	JSON = "json"
	CBOR = "cbor"
)

// Names of the ways in which the messages come to be there.
const (
	Filled = "filled" // published before; read from the oldest
	Live   = "live"   // published while the clients wait for them
)

// Transports returns every transport, from the slowest to the fastest.
func Transports() []string { return []string{Single, Batch, Multiple, Stream, SSE, WebSocket, TCP} }

// Formats returns every format.
func Formats() []string { return []string{JSON, CBOR} }

// Ways returns both ways.
func Ways() []string { return []string{Filled, Live} }

// A subject is one thing that is measured.
type subject struct{ transport, format, way string }

func (s subject) String() string { return strings.Join([]string{s.transport, s.format, s.way}, " ") }

// isFloor reports whether it is measured against package bare.
func (s subject) isFloor() bool { return s.transport == BareWriter || s.transport == BareLoop }

// onePerAnswer reports whether every message takes a request.
func (s subject) onePerAnswer() bool { return s.transport == Single || s.transport == BareLoop }

// encoding is how its frames stand.
func (s subject) encoding() encoding {
	switch {
	case s.transport == SSE:
		return events
	case s.format == CBOR:
		return items
	}
	return lines
}

// exists reports whether there is such a thing: an event stream is text, the TCP
// port speaks CBOR, and the floors have everything before anybody asks.
func (s subject) exists() bool {
	switch s.transport {
	case SSE:
		return s.format == JSON
	case TCP:
		return s.format == CBOR
	case BareWriter:
		return s.format == CBOR && s.way == Filled
	case BareLoop:
		return s.way == Filled
	}
	return true
}

// subjects returns all that a configuration asks for. A floor is measured with
// what stands upon it.
func (c *Config) subjects() []subject {
	var all []subject
	for _, way := range c.Ways {
		for _, transport := range c.withFloors() {
			for _, format := range c.Formats {
				if s := (subject{transport, format, way}); s.exists() {
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// withFloors returns the transports in their order, each before its floor.
func (c *Config) withFloors() []string {
	var all []string
	for _, transport := range Transports() {
		if !slices.Contains(c.Transports, transport) {
			continue
		}
		all = append(all, transport)
		if floor, ok := floors[transport]; ok && len(c.BareCommand) > 0 {
			all = append(all, floor)
		}
	}
	return all
}

// floors are what a transport is compared with.
var floors = map[string]string{Single: BareLoop, TCP: BareWriter}
