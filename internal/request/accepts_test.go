package request

import (
	"testing"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/stretchr/testify/require"
)

func TestAcceptFollowsRFC9110(t *testing.T) {
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
		require.Equal(t, want, !AcceptsOf([]string{accept}, nil).None, "Accept: %s", accept)
	}
	require.False(t, AcceptsOf(nil, nil).None)
	require.False(t, AcceptsOf([]string{"text/html", "*/*"}, nil).None, "two headers are one list")
}

func TestTheFormatWithTheHighestWeightWins(t *testing.T) {
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
		got := AcceptsOf([]string{accept}, nil)
		require.False(t, got.None, accept)
		require.Equal(t, want, got.Format, accept)
	}
}

func TestAcceptEncodingFollowsRFC9110(t *testing.T) {
	for header, want := range map[string]bool{
		"":                           false,
		"gzip":                       true,
		"GZIP":                       true,
		"x-gzip":                     true, // "SHOULD consider it equivalent"
		"gzip, deflate, br, zstd":    true,
		"deflate, gzip;q=1.0, *;q=0": true,
		"br, deflate":                false,
		"*":                          true,
		"*;q=0":                      false,
		"gzip;q=0":                   false,
		"gzip;q=0.000, *":            false,
		"gzip ; q=0.001":             true,
		"identity":                   false,
		"identity, gzip":             true,
		"gzip;q=0.5, identity":       false, // identity has a higher weight
		"gzip;q=0.5, identity;q=0.5": true,
		"gzip;q=0.5, *":              false, // * also matches identity
		"gzip;q=1, *;q=0.5":          true,
		"identity;q=0":               false, // identity is sent nevertheless
		"gzipped":                    false,
	} {
		require.Equal(t, want, acceptsGzip([]string{header}), "Accept-Encoding: %s", header)
	}
	require.False(t, acceptsGzip(nil))
	require.True(t, acceptsGzip([]string{"br", "gzip"}), "two headers are one list")
}
