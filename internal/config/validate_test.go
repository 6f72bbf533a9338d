package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/acme"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
	"github.com/pubsubd/pubsubd/internal/limit"
)

// Beyond loopback, clients need authorisation, and then TLS or plaintext. insecure permits
// neither to be there. The admin listener, which has no TLS, needs plaintext or insecure.
func TestWhatADaemonNeedsBeyondLoopback(t *testing.T) {
	const local, away = "127.0.0.1:0", "0.0.0.0:8443"
	pair := certtest.New(t)
	files, byACME := TLS{Cert: pair.Cert, Key: pair.Key}, acme.Config{Domains: []string{"app.example"}, Storage: "/s", Agree: true, Directory: acme.DefaultDirectory}
	authorises := map[string]auth.Config{
		"nobody": {}, "jwks": {JWKS: "https://login.example/jwks"}, "anonymous": {Anonymous: `[{"topics":["a"],"allow":["subscribe"]}]`},
	}
	for who, rights := range authorises {
		for how, change := range map[string]func(*Config){
			"clear": func(*Config) {}, "files": func(c *Config) { c.TLS = files }, "acme": func(c *Config) { c.ACME = byACME },
			"plaintext": func(c *Config) { c.Plaintext = true }, "insecure": func(c *Config) { c.Insecure = true },
		} {
			c := Default()
			c.Auth, c.Listen = rights, Listen{Public: local, Admin: local, TCP: "localhost:0", ACME: ""}
			c.Auth.TokenMaxAge = auth.DefaultTokenMaxAge
			change(&c)
			require.NoError(t, c.Validate(), "on loopback: %s, %s", who, how)
			for key, listen := range map[string]Listen{
				"listen.public": {Public: away, Admin: local}, "listen.tcp": {Public: local, Admin: local, TCP: away}, "listen.admin": {Public: local, Admin: away},
			} {
				c.Listen = listen
				err := c.Validate()
				switch {
				case how == "insecure", key == "listen.admin" && how == "plaintext":
					require.NoError(t, err, "%s: %s, %s", key, who, how)
				case key == "listen.admin":
					require.ErrorContains(t, err, `listen.admin is "0.0.0.0:8443", which other machines may reach, and everyone could read metrics and profiles`)
					require.ErrorContains(t, err, "--plaintext")
				case who == "nobody":
					require.ErrorContains(t, err, key+` is "0.0.0.0:8443", which other machines may reach, and no authorisation is configured`)
					require.ErrorContains(t, err, "auth.keys")
					require.ErrorContains(t, err, "--insecure")
				case how == "clear":
					require.ErrorContains(t, err, key+` is "0.0.0.0:8443", which other machines may reach, and there is no TLS`)
					require.ErrorContains(t, err, "tls.cert")
					require.ErrorContains(t, err, "--plaintext")
				default:
					require.NoError(t, err, "%s: %s, %s", key, who, how)
				}
			}
		}
	}
}

func TestValidateBeyondLoopback(t *testing.T) {
	c := Default()
	c.Listen.Public, c.Listen.Admin = ":8080", "10.0.0.1:8081"
	err := c.Validate()
	require.ErrorContains(t, err, "listen.public is \":8080\", which other machines may reach")
	require.ErrorContains(t, err, "listen.admin is \"10.0.0.1:8081\", which other machines may reach")
	require.ErrorContains(t, err, "--insecure")

	c.Insecure = true
	require.NoError(t, c.Validate())
}

// One sentence says who may do what.
func TestOneSentenceSaysWhoMayDoWhat(t *testing.T) {
	anonymous := `[{"topics":["public.>","news"],"allow":["subscribe","history"]},{"topics":["inbox"],"allow":["publish"]}]`
	for want, change := range map[string]func(*Config){
		"open to everyone on this machine: no authorisation is configured, so only loopback is served":                     func(*Config) {},
		"serving every client that can connect: no authorisation is configured, and --insecure permits this":               func(c *Config) { c.Insecure = true },
		"clients have the rights of their tokens of the keys in a.pem, b.json; clients without credentials may do nothing": func(c *Config) { c.Auth.Keys = []string{"a.pem", "b.json"} },
		"clients have the rights of their tokens of the keys at https://login.example/jwks, API keys in keys.json or certificates of ca.pem; clients without credentials may do nothing": func(c *Config) {
			c.Auth.APIKeys = "keys.json"
			c.Auth.JWKS, c.Auth.Certificates, c.TLS.ClientCA = "https://login.example/jwks", "[]", "ca.pem"
		},
		"clients without credentials may subscribe to and read the history of public.> and news, and may publish to inbox; connections are in clear text": func(c *Config) {
			c.Auth.Anonymous, c.Listen.Public, c.Plaintext = anonymous, ":8080", true
		},
		"clients without credentials may do nothing": func(c *Config) { c.Auth.Anonymous = "[]" },
	} {
		c := Default()
		change(&c)
		require.Equal(t, want, c.WhoMay())
	}
}

// Validate checks the bounds of a Config that was not loaded.
func TestValidateBounds(t *testing.T) {
	for _, tt := range []struct {
		key    string
		change func(*Config)
	}{
		{"history.messages", func(c *Config) { c.Broker.HistoryMessages = 0 }},
		{"history.age", func(c *Config) { c.Broker.HistoryAge = -1 }},
		{"history.bytes", func(c *Config) { c.Broker.HistoryBytes = c.MessageBytes - 1 }},
		{"message.bytes", func(c *Config) { c.MessageBytes = 8<<20 + 1; c.Broker.HistoryBytes = 1 << 30 }},
		{"session.queue", func(c *Config) { c.Session.Queue = 1025 }},
		{"session.unacked", func(c *Config) { c.Session.Unacked = -5 }},
		{"poll.heartbeat", func(c *Config) { c.Transport.Heartbeat = 0 }},
		{"poll.write_timeout", func(c *Config) { c.Transport.WriteTimeout = c.Transport.MaxOutputDelay }},
		{"drain.window", func(c *Config) { c.DrainWindow = -1 }},
		{"limits.calls", func(c *Config) { c.Limit.Calls = 0 }},
		{"limits.wait", func(c *Config) { c.Limit.Wait = c.Transport.WriteTimeout }},
		{"limits.connections", func(c *Config) { c.Limit.Connections = -1 }},
		{"limits.address_connections", func(c *Config) { c.Limit.Connections, c.Limit.AddressConnections = 10, 11 }},
		{"limits.address_calls", func(c *Config) { c.Limit.AddressCalls = c.Limit.Calls + c.Limit.WaitingCalls + 1 }},
		{"rates.polls.all", func(c *Config) { c.Limit.Rates[limit.Polls][limit.All].Burst = 5 }},
		{"rates.misses.address", func(c *Config) {
			c.Limit.Rates[limit.Misses] = [3]limit.Rate{limit.All: {PerSecond: 1}, limit.Address: {PerSecond: 2}}
		}},
		{"trusted_proxies", func(c *Config) { c.Limit.TrustedProxies = make([]netip.Prefix, 1) }},
		{"trusted_proxies", func(c *Config) { c.Limit.TrustedProxies = proxiesOf(maxProxies + 1) }},
		{"log.level", func(c *Config) { c.Log.Level = "" }},
		{"listen.public", func(c *Config) { c.Listen.Public = "nowhere" }},
		{"listen.admin", func(c *Config) { c.Listen.Admin = c.Listen.Public }},
	} {
		c := Default()
		tt.change(&c)
		var e *Error
		require.ErrorAs(t, c.Validate(), &e, tt.key)
		require.Equal(t, tt.key, e.Key)
	}
}

func TestValidateEdges(t *testing.T) {
	c := Default()
	c.MessageBytes = 8 << 20
	c.Broker.HistoryBytes = 8 << 20
	c.Session.Queue = 1024
	c.DrainWindow = 0
	c.Limit.Connections, c.Limit.AddressConnections = 10, 10
	c.Limit.AddressCalls = c.Limit.Calls + c.Limit.WaitingCalls
	c.Limit.Rates[limit.Polls] = [3]limit.Rate{limit.All: {PerSecond: 1}, limit.Address: {PerSecond: 1, Burst: 5}, limit.Principal: {PerSecond: 1}}
	c.Limit.TrustedProxies = proxiesOf(maxProxies)
	c.Listen.Public, c.Listen.Admin = "127.0.0.1:0", "127.0.0.1:0"
	require.NoError(t, c.Validate())
}

func proxiesOf(n int) []netip.Prefix {
	list := make([]netip.Prefix, n)
	for i := range list {
		list[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32)
	}
	return list
}

// A hook may use all slots: some daemons only publish messages that an application checks.
func TestWarningsAreNotErrors(t *testing.T) {
	hooked := []string{"PUBSUBD_HOOKS_PUBLISH_SECRET=" + strings.Repeat("k", 24), "PUBSUBD_HOOKS_PUBLISH_URL=http://127.0.0.1:9000/publish"}
	require.Empty(t, read(t, hooked).Warnings(), "the default leaves slots for other requests")
	require.Empty(t, read(t, hooked, "--limits-calls=16", "--hooks-publish-calls=15").Warnings())
	require.Empty(t, read(t, nil, "--limits-calls=16").Warnings(), "without a hook")

	s := read(t, hooked, "--limits-calls=16", "--hooks-publish-calls=16")
	require.Len(t, s.Warnings(), 1)
	require.Contains(t, s.Warnings()[0], "hooks.publish.calls is 16, not less than limits.calls (16): ")
	require.Contains(t, s.Summary(), "\nwarning   hooks.publish.calls is 16")

	hooked = []string{"PUBSUBD_HOOKS_AUTHORIZE_SECRET=" + strings.Repeat("k", 24), "PUBSUBD_HOOKS_AUTHORIZE_URL=http://127.0.0.1:9000/authorize"}
	require.Empty(t, read(t, hooked, "--limits-calls=101").Warnings())
	require.Contains(t, read(t, hooked, "--limits-calls=100").Warnings()[0], "hooks.authorize.calls is 100, not less than limits.calls (100): requests to subscribe ")
}

// An operator may create the file of API keys after the first start.
func TestAFileOfAPIKeysThatDoesNotExistIsAWarning(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	s := read(t, nil, "--auth-api-keys", file)
	require.Len(t, s.Warnings(), 1)
	require.Contains(t, s.Warnings()[0], "auth.api_keys is \""+file+"\", which does not exist: the daemon starts without API keys")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Empty(t, s.Warnings())

	_, err := load(t, "", nil, "--auth-api-keys", filepath.Join(file+".d", "keys"))
	require.ErrorContains(t, err, "make this folder, or correct the path")
}

// A proxy forwards the name that clients use. A daemon on loopback without hosts refuses it.
func TestAProxyBeforeLoopbackNeedsHosts(t *testing.T) {
	const proxied = "--trusted-proxies=127.0.0.1"
	for _, args := range [][]string{{proxied}, {proxied, "--listen-public=unix:/run/public.sock"}} {
		s := read(t, nil, args...)
		require.Len(t, s.Warnings(), 1, args)
		require.Contains(t, s.Warnings()[0], "trusted_proxies is set, but hosts is empty, and listen.public is "+s.Listen.Public)
	}
	for _, args := range [][]string{{"--hosts=app.example"}, {"--cors-origins=*"}, {"--listen-public=:8080", "--insecure"}} {
		require.Empty(t, read(t, nil, append(args, proxied)...).Warnings(), args)
	}
}

// The flag of store.dir is short. A bound of the log that one history exceeds is refused, and
// one that has no effect is warned of.
func TestTheBoundOfTheLog(t *testing.T) {
	c, err := load(t, "", nil, "--store", "/var/lib/pubsubd/store", "--store-bytes", "64MiB", "--store-sync", "always")
	require.NoError(t, err)
	require.Equal(t, Store{Dir: "/var/lib/pubsubd/store", Sync: "always", Bytes: 64 << 20}, c.Store)
	require.Empty(t, c.Warnings())

	_, err = load(t, "store: {dir: /s, bytes: 64MiB}\nhistory: {bytes: 17MiB}\n", nil)
	require.ErrorContains(t, err, "store.bytes is 64MiB, less than four times history.bytes (17MiB): raise it")
	_, err = load(t, "store: {dir: /s, bytes: 1MiB, sync: 2s}\n", nil)
	require.ErrorContains(t, err, `store.bytes is "1MiB": want bytes, such as 4096, 64KiB or 1MiB, of at least 64MiB, or off`)
	require.ErrorContains(t, err, `store.sync is "2s": want 1s, always, never or stop`)

	c, err = load(t, "store: {bytes: 64MiB}\nhistory: {bytes: 17MiB}\n", nil)
	require.NoError(t, err)
	require.Len(t, c.Warnings(), 1)
	require.Contains(t, c.Warnings()[0], "store.dir (--store)")
	for yaml, want := range map[string]string{
		"store: {dir: /s, sync: stop, bytes: 64MiB}\n": "store.bytes has no effect with store.sync: stop",
		"store: {sync: stop}\n":                        "store.sync: stop has no effect without a folder",
	} {
		c, err = load(t, yaml, nil)
		require.NoError(t, err)
		require.Len(t, c.Warnings(), 1)
		require.Contains(t, c.Warnings()[0], want)
	}
}
