package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSocketsMemoryIsInPages(t *testing.T) {
	const text = "sockets: used 290\nTCP: inuse 5 orphan 0 tw 2 alloc 7 mem 3\nUDP: inuse 1 mem 9\n"
	require.Equal(t, int64(3*os.Getpagesize()), parseSocketBytes(text))
	require.Zero(t, parseSocketBytes(""))
	require.Zero(t, parseSocketBytes("TCP: inuse 5\n"))
}
