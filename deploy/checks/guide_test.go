package checks

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The guide for operators has ten queries, and a daemon has the metrics that they name.
func TestTheQueriesOfTheGuideAreOfMetricsThatExist(t *testing.T) {
	guide, err := os.ReadFile(deploy + "README.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```promql\n(.*?)```").FindSubmatch(guide)
	require.NotNil(t, block)
	asked, queries := map[string]string{}, 0
	for line := range strings.Lines(string(block[1])) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		queries++
		for _, name := range metricsOf(t, line) {
			asked[name] = line
		}
	}
	require.Equal(t, 10, queries)
	d := serve(t, "--history-messages=1")
	d.live()
	d.wantMetrics(asked)
}
