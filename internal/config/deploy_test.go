package config

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
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

// What is commented out in it can be put in.
func TestTheExampleOfARuleIsOne(t *testing.T) {
	text, err := os.ReadFile("../../deploy/pubsubd.yaml")
	require.NoError(t, err)
	_, rules, ok := strings.Cut(string(text), "\n# topics:")
	require.True(t, ok)
	c, err := load(t, "topics:"+strings.ReplaceAll(rules, "\n# ", "\n"), nil)
	require.NoError(t, err)
	require.Equal(t, []broker.Rule{{Name: "prices", Pattern: "prices.>", HistoryMessages: 100, HistoryAge: 10e9, Slow: broker.Conflate}}, c.Broker.Rules)
}
