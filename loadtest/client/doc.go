// Package client is the load generator's side of PROTOCOL.md without any I/O:
// bytes that arrived go in, requests to send and deliveries come out.
//
// It is lean, so that the generator is not what a load test measures, and
// strict: it reads exactly the HTTP/1.1 and the frames that the protocol
// promises, and anything else is an error rather than a guess. A shortcut here
// is always a comparison with bytes that the full reading took before, or a
// form so narrow that the full reading (pkg/wire) cannot see it differently; the
// differential and fuzz tests hold it to that.
//
// All values of one Kit belong to one goroutine.
package client
