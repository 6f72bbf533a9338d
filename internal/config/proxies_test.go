package config

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProxiesAreAddressesOrNetworks(t *testing.T) {
	var list []netip.Prefix
	f := proxies(&list)
	for text, want := range map[string][]string{
		"":                        nil,
		" ":                       nil,
		"10.0.0.7":                {"10.0.0.7/32"},
		"::1":                     {"::1/128"},
		"10.0.0.7/32 , fd00::/8":  {"10.0.0.7/32", "fd00::/8"},
		"127.0.0.0/8,10.1.0.0/16": {"127.0.0.0/8", "10.1.0.0/16"},
		"10.0.0.0/8,10.0.0.7":     {"10.0.0.0/8", "10.0.0.7/32"}, // one within the other does no harm
	} {
		require.NoError(t, f.set(text), text)
		var got []string
		for _, p := range list {
			got = append(got, p.String())
		}
		require.Equal(t, want, got, text)
		was := list
		require.NoError(t, f.set(f.text()), "%q", f.text())
		require.Equal(t, was, list)
	}
	for _, text := range []string{",", "10.0.0.7,", "10.0.0", "10.0.0.7/33", "10.0.0.7/", "/8", "10.0.0.0/08", "localhost", "[::1]", "::1%lo", "fe80::%eth0/64", "10.0.0.1-10.0.0.9", "::ffff:10.0.0.0/104"} {
		require.Error(t, f.set(text), "%q", text)
	}
}
