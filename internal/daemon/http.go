package daemon

import (
	"bytes"
	"log"
	"net/http"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pubsubd/pubsubd/internal/listen"
)

// Timeouts and bounds of both HTTP servers. Whole requests and answers have none: polls
// wait, streams last. Bodies and writes have their own.
const (
	headTimeout  = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	maxHeadBytes = 32 << 10
)

func (d *Daemon) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           listen.Serving(h),
		ConnContext:       listen.NewContext,
		ReadHeaderTimeout: headTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeadBytes - 4<<10, // net/http allows 4 KiB beyond
		ErrorLog:          log.New(&errorWriter{d.log.Named("http")}, "", 0),

		DisableGeneralOptionsHandler: true, // it would answer OPTIONS * past every limit and metric
	}
}

// An errorWriter takes net/http's log. Entries about clients have level debug: a failed
// handshake, as a port scan makes, or malformed HTTP/2 frames. Otherwise any client
// could fill the log.
type errorWriter struct{ to *zap.Logger }

// Write takes one entry, as log.Logger writes it.
func (w *errorWriter) Write(entry []byte) (int, error) {
	level := zapcore.InfoLevel
	if bytes.HasPrefix(entry, []byte("http: TLS handshake error")) ||
		bytes.HasPrefix(entry, []byte("http2: ")) && !bytes.HasPrefix(entry, []byte("http2: panic")) {
		level = zapcore.DebugLevel
	}
	w.to.Log(level, string(bytes.TrimSpace(entry)))
	return len(entry), nil
}

// alpn names the protocols within TLS (RFC 7301), the preferred one first.
var alpn = []string{"h2", "http/1.1"}

// Bounds of one HTTP/2 connection, beside those of both servers.
const (
	// maxStreams bounds the requests in flight, parked polls among them. RFC 9113, section
	// 6.5.2, recommends no less; each costs as much as a connection of HTTP/1.1 and may
	// have a body. Proxies open another connection when all are in use.
	maxStreams = 100

	// maxFrameBytes bounds a frame that is read: a connection keeps a buffer as large as
	// its largest. It is the smallest allowed value; the default is 1 MiB.
	maxFrameBytes = 16 << 10

	// streamWindow bounds the bytes in flight of one body: a message of the default bound
	// comes without a wait, and one of 8 MiB within the body timeout at round trips of up
	// to half a second. connectionWindow bounds the unread bytes of all bodies of a
	// connection. The defaults are 1 MiB for both.
	streamWindow     = 256 << 10
	connectionWindow = 512 << 10

	// pingAfter is how long a client may be silent before it is pinged: longer than a poll
	// waits by default, so that only clients of streams are pinged. A client that does
	// not answer within pingTimeout has left. That is noticed before its sessions are
	// inactive.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)
