package config

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
)

// The example lists the defaults.
func TestTheExampleConfigurationIsTheDefaults(t *testing.T) {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	loader := Bind(flags)
	require.NoError(t, flags.Parse([]string{"--config=../../deploy/pubsubd.yaml"}))
	cfg, err := loader.Load(nil)
	require.NoError(t, err)
	require.Equal(t, Default(), cfg.Config)
}

// The example for the Internet is valid, also with the settings that are commented out. It
// bounds each address in every way.
func TestTheExampleForTheInternetBoundsEachAddress(t *testing.T) {
	text, err := os.ReadFile("../../deploy/internet.yaml")
	require.NoError(t, err)
	yaml := string(text)
	for _, off := range []string{"# address_connections:", "# connections:"} {
		require.Contains(t, yaml, off)
		yaml = strings.Replace(yaml, off, strings.TrimPrefix(off, "# "), 1)
	}
	for _, example := range []string{string(text), yaml} {
		c, err := load(t, example, nil)
		require.NoError(t, err)
		require.Len(t, c.Limit.TrustedProxies, 2)
		require.NotZero(t, c.Limit.AddressCalls)
		for _, kind := range limit.Kinds() {
			if kind != limit.Connections || example == yaml {
				require.NotZero(t, c.Limit.Rates[kind][limit.Address], kind)
			}
		}
		require.NotZero(t, c.Limit.Rules[0].Rate)
	}
}

// The rule that is commented out in the example is valid.
func TestTheExampleOfARuleIsValid(t *testing.T) {
	text, err := os.ReadFile("../../deploy/pubsubd.yaml")
	require.NoError(t, err)
	_, rules, ok := strings.Cut(string(text), "\n# topics:")
	require.True(t, ok)
	c, err := load(t, "topics:"+strings.ReplaceAll(rules, "\n# ", "\n"), nil)
	require.NoError(t, err)
	require.Equal(t, []broker.Rule{{Name: "prices", Pattern: "prices.>", HistoryMessages: 100, HistoryAge: 10e9, Slow: broker.Conflate}}, c.Broker.Rules)
}
