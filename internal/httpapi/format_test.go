package httpapi

import (
	"testing"

	"github.com/pubsubd/pubsubd/internal/frame"
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
		"application/cbor-seq":                true,
		"*/*;q=0":                             false,
		"application/x-ndjson;q=0, */*":       true, // in CBOR
		"application/x-ndjson, */*;q=0":       true,
		"application/*;q=0.0, */*":            false,
		"text/plain;q=0.5, application/x-ndj": false,
	} {
		require.Equal(t, want, !accepted([]string{accept}).None, "Accept: %s", accept)
	}
	require.False(t, accepted(nil).None)
	require.False(t, accepted([]string{"text/html", "*/*"}).None, "two headers are one list")
}

func TestTheFormatThatIsLikedBestIsTaken(t *testing.T) {
	for accept, want := range map[string]frame.Format{
		"":                     frame.NDJSON,
		"*/*":                  frame.NDJSON,
		"application/cbor-seq": frame.CBOR,
		"application/cbor-seq, application/x-ndjson":         frame.NDJSON,
		"application/x-ndjson;q=0.5, application/cbor-seq":   frame.CBOR,
		"application/cbor-seq;q=0.2, */*;q=0.1":              frame.CBOR,
		"application/x-ndjson;q=0, */*":                      frame.CBOR,
		"application/cbor-seq;q=0.2, application/json;q=0.2": frame.NDJSON,
	} {
		got := accepted([]string{accept})
		require.False(t, got.None, accept)
		require.Equal(t, want, got.Format, accept)
	}
}
