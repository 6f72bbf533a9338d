package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThrottleCommandLinesThatCannotBeObeyed(t *testing.T) {
	for _, args := range [][]string{
		{"--settings=10"}, {"--settings="}, {"--step=10"}, {"--users=0"}, {"--search"}, {"--search", "--max-mean=1s", "--settings=1/1"},
		{"--search", "--max-mean=1s", "--target=http://127.0.0.1:1"}, {"--target=http://127.0.0.1:1"}, {"--svg=/there/is/no/such/folder/x"}, {"extra"},
	} {
		r := run(t, nil, append([]string{"loadtest", "throttle"}, args...)...)
		require.Equal(t, exitUsage, r.code, "%s\n%s", args, r.stderr)
	}
}
