package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAcceptIsReadAsRFC9110Says(t *testing.T) {
	for accept, want := range map[string]bool{
		"":                                    true,
		"*/*":                                 true,
		"text/html, */*;q=0.8":                true,
		"application/json, text/plain, */*":   true,
		"APPLICATION/X-NDJSON":                true,
		"application/*;q=0.1":                 true,
		"text/html":                           false,
		"application/json":                    true,
		"application/cbor-seq":                false,
		"*/*;q=0":                             false,
		"application/x-ndjson;q=0, */*":       false,
		"application/x-ndjson, */*;q=0":       true,
		"application/*;q=0.0, */*":            false,
		"text/plain;q=0.5, application/x-ndj": false,
	} {
		require.Equal(t, want, !accepted([]string{accept}).None, "Accept: %s", accept)
	}
	require.False(t, accepted(nil).None)
	require.False(t, accepted([]string{"text/html", "*/*"}).None, "two headers are one list")
}
