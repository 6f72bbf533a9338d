package config

import (
	"os"
	"regexp"
	"strconv"
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

// The example for the Internet is valid. It bounds each address in every way.
func TestTheExampleForTheInternetBoundsEachAddress(t *testing.T) {
	text, err := os.ReadFile("../../deploy/internet.yaml")
	require.NoError(t, err)
	c, err := load(t, string(text), nil)
	require.NoError(t, err)
	require.Len(t, c.Limit.TrustedProxies, 2)
	require.NotZero(t, c.Limit.AddressCalls)
	require.NotZero(t, c.Limit.AddressConnections)
	for _, kind := range limit.Kinds() {
		require.NotZero(t, c.Limit.Rates[kind][limit.Address], kind)
	}
	require.NotZero(t, c.Limit.Rules[0].Rate)

	// What the daemon does not count behind a proxy, the proxy bounds.
	for _, example := range []string{"nginx/pubsubd.conf", "haproxy/haproxy.cfg", "caddy/Caddyfile"} {
		text, err := os.ReadFile("../../deploy/" + example)
		require.NoError(t, err)
		bounds := connectionsOfAnAddress.FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, bounds, example)
		for _, bound := range bounds {
			require.Equal(t, strconv.Itoa(c.Limit.AddressConnections), bound[1], example)
		}
	}
}

var connectionsOfAnAddress = regexp.MustCompile(`(?:limit_conn pubsubd_addresses|sc0_conn_cur gt|--connlimit-above) (\d+)`)

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
