// Package floor is the least that a push server can do: what it costs is the
// physical limit that pubsubd is compared with, made mostly of the kernel's
// work for one read and one write per delivery.
//
// It is one thread with one epoll and raw system calls. It leaves out nearly
// everything that makes a server: authorisation, sessions, acknowledgement and
// resumption, timeouts and heartbeats, limits, back pressure (a client that does
// not take its bytes at once is cut off), history beyond the last few messages,
// metrics, logging, TLS, any second core, and reading what a known poller asks
// for: the end of the request's head is all it looks for. Nobody should run it
// for anything else than a measurement.
//
//	GET  /poll?t=TOPIC    parks; is answered with the next message
//	GET  /stream?t=TOPIC  a chunked answer without end, one message a line
//	POST /pub?t=TOPIC     the body is a message for everyone on the topic
//
// What a connection's first request is, the others must be, too.
package floor
