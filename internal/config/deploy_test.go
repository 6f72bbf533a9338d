package config

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// The example is what it says: the defaults.
func TestTheExampleConfigurationIsTheDefaults(t *testing.T) {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	loader := Bind(flags)
	require.NoError(t, flags.Parse([]string{"--config=../../deploy/pubsubd.yaml"}))
	cfg, err := loader.Load(nil)
	require.NoError(t, err)
	require.Equal(t, Default(), cfg)
}
