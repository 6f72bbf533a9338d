package main

import (
	"encoding/json"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionAsJSON(t *testing.T) {
	var b build
	require.NoError(t, json.Unmarshal([]byte(run(t, nil, "version", "--json").stdout), &b))
	require.Equal(t, "v0.0.0-test", b.Version)
	require.Equal(t, runtime.Version(), b.Go)
	require.Equal(t, runtime.GOOS, b.OS)
	require.Equal(t, runtime.GOARCH, b.Arch)
}
