package encoding

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryFaultOfAConfigIsNamedByItsFlag(t *testing.T) {
	_, err := Run(t.Context(), Config{ServerPID: -1}, silent)
	require.ErrorAs(t, err, new(ConfigError))
	for _, flag := range []string{"--target", "--server-pid", "--clients", "--duration", "--rounds", "--objects"} {
		require.ErrorContains(t, err, flag)
	}
	cfg := Default()
	cfg.Target, cfg.Objects = "https://127.0.0.1", []int{20, 20, 0}
	err = cfg.check()
	require.ErrorContains(t, err, "https")
	require.ErrorContains(t, err, "20 is listed twice")
	require.ErrorContains(t, err, "--objects: must be 1 to 300; got 0")
	cfg = Default()
	cfg.ServerCommand = []string{"pubsubd", "serve"}
	require.NoError(t, cfg.check())
}
