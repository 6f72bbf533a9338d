package daemon

import (
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/internal/config"
)

// Names of what is spoken within TLS (RFC 7301), the one that is liked best first.
var alpn = []string{"h2", "http/1.1"}

// protocolsOf is what the public listener speaks.
func protocolsOf(cfg config.Config) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(cfg.TLS.On())
	p.SetUnencryptedHTTP2(cfg.HTTP2.Cleartext && !cfg.TLS.On())
	return p
}

// Bounds of one HTTP/2 connection, beside those of both servers.
const (
	// maxStreams is how many requests may be under way, polls that wait among them. It is
	// what RFC 9113, section 6.5.2, has as the least; each costs as much as a connection
	// of HTTP/1.1 and may have a body. Proxies open another connection when it is used up.
	maxStreams = 100

	// maxFrameBytes bounds a frame that is read: a connection keeps a buffer as large as
	// the largest was. It is the least that may be said; the default is 1 MiB.
	maxFrameBytes = 16 << 10

	// streamWindow is how much of one body may be on its way: a message of the default
	// bound comes without a wait, and one of 8 MiB within the body timeout up to a round
	// trip of half a second. connectionWindow is that for all bodies of a connection,
	// and so what is held of them that nobody has read. The defaults are 1 MiB for both.
	streamWindow     = 256 << 10
	connectionWindow = 512 << 10

	// pingAfter is how long a client may be silent before it is asked whether it is
	// there: longer than a poll is held by default, so that those who poll are not
	// asked, only those who listen to a stream. Who does not answer within
	// pingPatience has left, which so is noticed before its sessions are inactive.
	pingAfter    = 30 * time.Second
	pingPatience = 15 * time.Second
)

// http2Config returns the bounds. writeTimeout is for connections that take no bytes at
// all; each answer has its own, which a reload may change.
func http2Config(writeTimeout time.Duration) *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          maxStreams,
		MaxReadFrameSize:              maxFrameBytes,
		MaxReceiveBufferPerStream:     streamWindow,
		MaxReceiveBufferPerConnection: connectionWindow,
		SendPingTimeout:               pingAfter,
		PingTimeout:                   pingPatience,
		WriteByteTimeout:              writeTimeout,
	}
}
