package daemon

import (
	"bytes"
	"log"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// errorLog is for http.Server.ErrorLog. What a client does wrong is logged at debug
// alone, or whoever connects could fill the log: a handshake that fails, as a look for
// open ports makes, or frames of HTTP/2 that make no sense.
func errorLog(to *zap.Logger) *log.Logger { return log.New(&errorWriter{to}, "", 0) }

type errorWriter struct{ to *zap.Logger }

// Write takes one entry, as log.Logger writes it.
func (w *errorWriter) Write(entry []byte) (int, error) {
	level := zapcore.InfoLevel
	if isClients(entry) {
		level = zapcore.DebugLevel
	}
	w.to.Log(level, string(bytes.TrimSpace(entry)))
	return len(entry), nil
}

// isClients reports whether it is a client that net/http speaks of.
func isClients(entry []byte) bool {
	return bytes.HasPrefix(entry, []byte("http: TLS handshake error")) ||
		bytes.HasPrefix(entry, []byte("http2: ")) && !bytes.HasPrefix(entry, []byte("http2: panic"))
}
