// Package encoding measures what an encoding costs the whole way: clients build an
// array of objects and publish it, the server checks it and sends it back, and the
// clients make objects of what came. It is the experiment of "Improving the
// performance of web services in SL3 Beta", with text, compressed text and binary
// (JSON, gzip JSON, CBOR), and the size table of that article, with the two columns
// that its readers asked for: compressed text, and what compressing costs.
//
// A codec is an encoding; an echoer is one client; a load is the clients of one
// encoding and size; Run is all of it, in turns. What it means is left to findings.
package encoding
