package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddresses(t *testing.T) {
	for _, tt := range []struct {
		address  string
		valid    bool
		loopback bool
	}{
		{"127.0.0.1:8080", true, true},
		{"127.0.0.1:0", true, true},
		{"127.255.255.254:8080", true, true},
		{"localhost:8080", true, true},
		{"LocalHost:8080", true, true},
		{"localhost.:8080", true, true},
		{"[::1]:8080", true, true},
		{"[::ffff:127.0.0.1]:8080", true, true},

		{":8080", true, false},
		{":0", true, false},
		{"0.0.0.0:8080", true, false},
		{"[::]:8080", true, false},
		{"128.0.0.1:8080", true, false},
		{"10.0.0.1:8080", true, false},
		{"[fe80::1%eth0]:8080", true, false},
		{"localhost.example.com:8080", true, false},
		{"127.0.0.1.example.com:8080", true, false},
		{"pubsubd.internal:65535", true, false},

		{"", false, false},
		{"8080", false, false},
		{"127.0.0.1", false, false},
		{"127.0.0.1:", false, false},
		{"127.0.0.1:http", false, false},
		{"127.0.0.1:65536", false, false},
		{"127.0.0.1:-1", false, false},
		{"::1:8080", false, false},
		{"[::1", false, false},
		{"[:::1]:8080", false, false},
		{"http://localhost:8080", false, false},
		{"user@localhost:8080", false, false},
		{"local host:8080", false, false},
	} {
		require.Equal(t, tt.valid, isAddress(tt.address), "isAddress(%q)", tt.address)
		if tt.valid {
			require.Equal(t, tt.loopback, isLoopback(tt.address), "isLoopback(%q)", tt.address)
		}
	}
}
