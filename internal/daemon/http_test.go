package daemon

import (
	"log"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestNetHTTPsClientErrorsAreLoggedAtDebug(t *testing.T) {
	core, logged := observer.New(zapcore.DebugLevel)
	l := log.New(&errorWriter{zap.New(core)}, "", 0)
	for entry, level := range map[string]zapcore.Level{
		"http: TLS handshake error from 127.0.0.1:1: EOF": zapcore.DebugLevel,
		"http2: server connection error from 127.0.0.1:1": zapcore.DebugLevel,
		"http: panic serving 127.0.0.1:1: oh":             zapcore.InfoLevel,
		"http2: panic serving 127.0.0.1:1: oh":            zapcore.InfoLevel,
		"http: Accept error: too many open files":         zapcore.InfoLevel,
	} {
		l.Print(entry)
		said := logged.TakeAll()
		require.Len(t, said, 1)
		require.Equal(t, entry, said[0].Message)
		require.Equal(t, level, said[0].Level)
	}
}
