package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// runSink serves until the test ends.
func runSink(t *testing.T) *sink {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := newSink(ctx)
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	return s
}

func TestASinkAnswersWhateverLooksLikeARequest(t *testing.T) {
	conn, err := net.Dial("tcp", runSink(t).address())
	require.NoError(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	for name, request := range map[string]string{
		"a GET":                       string(get("/")),
		"a body":                      string(publishTo("a", filling(100_000))),
		"a head that is too long":     "GET / HTTP/1.1\r\nX-Long: " + strings.Repeat("x", 100_000) + "\r\n\r\n",
		"a line of many headers":      "GET / HTTP/1.1\r\n" + strings.Repeat("X-Long: x\r\n", 10_000) + "\r\n",
		"a body's length in capitals": "POST / HTTP/1.1\r\nCONTENT-LENGTH: 3\r\n\r\nabc",
	} {
		_, err := io.WriteString(conn, request)
		require.NoError(t, err, name)
		answer, err := http.ReadResponse(in, nil)
		require.NoError(t, err, name)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err, name)
		require.NoError(t, answer.Body.Close(), name)
		require.Equal(t, http.StatusOK, answer.StatusCode, name)
		require.Contains(t, string(body), `"session":"`, name)
	}
}

func TestASinkIsNotStoppedByWhoLeaves(t *testing.T) {
	s := runSink(t)
	for range 100 {
		conn, err := net.Dial("tcp", s.address())
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
		require.NoError(t, conn.Close())
	}
	conn, err := net.Dial("tcp", s.address())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(get("/"))
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
}
