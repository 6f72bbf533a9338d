package client

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBrowserHeaders(t *testing.T) {
	h := BrowserHeader("127.0.0.1:8080")
	require.Equal(t, []string{"http://127.0.0.1:8080/"}, h["Referer"])
	require.Equal(t, []string{"identity"}, h["Accept-Encoding"])
	require.Equal(t, []string{userAgent}, h["User-Agent"])
	require.NotContains(t, h, "Host")
	require.NotContains(t, h, "Connection")
}
