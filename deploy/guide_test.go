package deploy_test

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The sizing example of the guide quotes the rows that it names, and calculates with them.
func TestTheSizingExampleQuotesWhatWasMeasured(t *testing.T) {
	_, guide, found := strings.Cut(read(t, "README.md"), "\n### How large a machine\n")
	require.True(t, found)
	guide, _, _ = strings.Cut(guide, "\n## ")
	guide = strings.Join(strings.Fields(guide), " ")

	const users = 20_000
	run := read(t, "../loadtest/README.md")
	micros := measured(t, run, `server CPU .* ([\d.]+) µs per delivery`)
	deliveries := measured(t, run, `deliveries +(\d+) of`)
	mebibytes := measured(t, run, `([\d.]+) MiB out`)
	bytes := math.Round(mebibytes * (1 << 20) / deliveries)
	pair := measured(t, read(t, "../loadtest/results/compare-transports.md"), `(?s)\n## Collaboration.*?\n\| pubsubd-ws \| \d+ \| ([\d.]+) \|`)
	for _, want := range []string{
		fmt.Sprintf("%.2f µs per delivery", micros),
		fmt.Sprintf("20,000 deliveries a second take %.2f of a core", users*micros/1e6),
		fmt.Sprintf("%.0f MiB out for 2,018,784 deliveries, %.0f bytes each", mebibytes, bytes),
		fmt.Sprintf("%.0f MB/s, or %.0f Mbit/s", users*bytes/1e6, users*bytes*8/1e6),
		fmt.Sprintf("99 %% within %.0f ms", measured(t, run, `\n +1 +19792 .*? ([\d.]+) +[\d.]+ +[\d.]+ +0 +0 +0\n`)),
		fmt.Sprintf("%.0f bytes for a client", measured(t, run, `\((\d+) bytes per client\)`)),
		fmt.Sprintf("11/8 × 512 MiB + 20,000 × 6 KiB = %.0f MiB", 512*11/8+users*6/1024.0),
		fmt.Sprintf("%.2f µs per message, so the daemon takes %.2f of a core", pair, users/2*pair/1e6),
	} {
		require.Contains(t, guide, want)
	}
	require.EqualValues(t, 2_018_784, deliveries)
}

// measured returns the number in the parentheses of a pattern.
func measured(t *testing.T, text, pattern string) float64 {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, found, pattern)
	number, err := strconv.ParseFloat(found[1], 64)
	require.NoError(t, err)
	return number
}
