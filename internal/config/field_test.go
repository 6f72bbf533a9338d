package config

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int
		back string // how formatSize writes it; "": as text
	}{
		{"0", 0, ""},
		{"1", 1, ""},
		{"1023", 1023, ""},
		{"1024", 1024, "1KiB"},
		{"0KiB", 0, "0"},
		{"64KiB", 65536, ""},
		{"1536KiB", 1572864, ""},
		{"1024KiB", 1 << 20, "1MiB"},
		{"8MiB", 8 << 20, ""},
		{"2GiB", 2 << 30, ""},
		{"9223372036854775807", math.MaxInt, ""},
	} {
		n, err := parseSize(tt.text)
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.want, n, tt.text)
		back := tt.back
		if back == "" {
			back = tt.text
		}
		require.Equal(t, back, formatSize(n))
	}
	for _, text := range []string{"", "KiB", "-1", "-1KiB", "1.5MiB", "1KB", "1kib", "1 KiB", "1K", "1B", "0x10", "9223372036854775808", "8589934592GiB", "1MiBKiB"} {
		_, err := parseSize(text)
		require.Error(t, err, "%q", text)
	}
}

func TestANumberWithAWord(t *testing.T) {
	n := 0
	f := number{least: 1, word: "off"}.field(&n)
	require.Equal(t, "off", f.text())
	require.NoError(t, f.set("7"))
	require.Equal(t, 7, n)
	require.Equal(t, "7", f.text())
	for _, text := range []string{"0", "-1", "", "auto", "1.5", "OFF"} {
		require.Error(t, f.set(text), "%q", text)
	}
	require.NoError(t, f.set("off"))
	require.Zero(t, n)
	f = number{least: 1, word: "fair", older: "off"}.field(&n)
	require.NoError(t, f.set("7"))
	require.NoError(t, f.set("off"))
	require.Zero(t, n)
	require.Equal(t, "fair", f.text())
	require.Error(t, f.set(""))
}
