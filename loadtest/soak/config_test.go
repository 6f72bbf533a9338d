package soak

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryFaultOfAConfigIsNamedByItsFlag(t *testing.T) {
	_, err := Run(context.Background(), Config{}, func(string) {})
	require.ErrorAs(t, err, new(ConfigError))
	for _, flag := range []string{"--duration", "--settle", "--topics", "--subscribers", "--publishers", "--rate", "--restart", "command"} {
		require.ErrorContains(t, err, flag)
	}
	cfg := Default()
	cfg.ServerCommand = []string{"pubsubd", "serve"}
	require.NoError(t, cfg.check())
}
