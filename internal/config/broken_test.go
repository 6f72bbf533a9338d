package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config/certtest"
)

// testdata/broken.golden has the error for each mistake. Read it: would you know what to
// change?
func TestBrokenInput(t *testing.T) {
	file, err := filepath.Abs("testdata/broken.golden")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	certtest.Pair{Cert: "cert.pem", Key: "key.pem"}.Write(t)
	certtest.Pair{Cert: "other-cert.pem", Key: "other-key.pem"}.Write(t)
	var errors strings.Builder
	for _, tt := range broken {
		fmt.Fprintf(&errors, "== %s\n", tt.name)
		for _, line := range strings.Split(strings.TrimSuffix(tt.yaml, "\n"), "\n") {
			if tt.yaml != "" {
				fmt.Fprintf(&errors, "    %s\n", line)
			}
		}
		if given := strings.TrimSpace(strings.Join(append(tt.environ, tt.args...), " ")); given != "" {
			fmt.Fprintf(&errors, "  $ %s\n", given)
		}
		fmt.Fprintf(&errors, "%s\n\n", tt.error(t))
	}
	golden(t, file, errors.String())
}

type brokenInput struct {
	name    string
	yaml    string
	environ []string
	args    []string
}

func (b brokenInput) error(t *testing.T) error {
	t.Helper()
	args := b.args
	if b.yaml != "" {
		require.NoError(t, os.WriteFile("pubsubd.yaml", []byte(b.yaml), 0o600))
		args = append([]string{"--config=pubsubd.yaml"}, args...)
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	l := Bind(fs)
	require.NoError(t, fs.Parse(args))
	_, err := l.Load(b.environ)
	require.Error(t, err, b.name)
	return err
}

var broken = []brokenInput{
	{name: "all at once, from all sources", yaml: "history:\n  age: soon\n  max_messages: 5\n",
		environ: []string{"PUBSUBD_MESSAGE_BYTES=9MiB", "PUBSUBD_SESION_QUEUE=5"}, args: []string{"--poll-timeout=25", "--log-level=loud"}},

	{name: "unknown key", yaml: "history:\n  aeg: 2m\n"},
	{name: "unknown key, no similar one", yaml: "colour: blue\n"},
	{name: "unknown section", yaml: "log:\n  level: info\nhystory:\n  age: 2m\n"},
	{name: "duplicate key", yaml: "history:\n  age: 2m\n  bytes: 1MiB\n  age: 3m\n"},
	{name: "duplicate section", yaml: "history:\n  age: 2m\nhistory:\n  bytes: 1MiB\n"},
	{name: "duplicate key in two spellings", yaml: "history.age: 2m\nhistory:\n  age: 3m\n"},
	{name: "value for a section", yaml: "history: 2m\n"},
	{name: "list for a section", yaml: "history:\n- age: 2m\n"},
	{name: "section for a value", yaml: "history:\n  age:\n    seconds: 5\n"},
	{name: "list for a value", yaml: "listen:\n  public: [127.0.0.1:8080]\n"},
	{name: "nothing for a value", yaml: "history:\n  age:\n"},
	{name: "anchors", yaml: "history:\n  age: &a 2m\nsession:\n  inactivity_timeout: *a\n"},
	{name: "two documents", yaml: "log:\n  level: info\n---\nlog:\n  level: warn\n"},
	{name: "not a mapping", yaml: "just words\n"},
	{name: "not YAML", yaml: "log: {level: info\n"},
	{name: "only comments", yaml: "# log:\n#   level: info\n"},
	{name: "tabs", yaml: "log:\n\tlevel: info\n"},
	{name: "missing file", args: []string{"--config=missing.yaml"}},
	{name: "empty file name", args: []string{"--config="}},
	{name: "empty file name in the environment", environ: []string{"PUBSUBD_CONFIG="}},

	{name: "count: word", args: []string{"--history-messages=many"}},
	{name: "count: zero", args: []string{"--history-messages=0"}},
	{name: "count: fraction", yaml: "history:\n  messages: 1.5\n"},
	{name: "count: too large", environ: []string{"PUBSUBD_SESSION_QUEUE=1025"}},
	{name: "count: empty", environ: []string{"PUBSUBD_SESSION_QUEUE="}},
	{name: "size: MB", environ: []string{"PUBSUBD_HISTORY_BYTES=5MB"}},
	{name: "size: overflow", environ: []string{"PUBSUBD_HISTORY_BYTES=9999999999999GiB"}},
	{name: "size: negative", args: []string{"--history-bytes=-1KiB"}},
	{name: "size: too large", yaml: "message:\n  bytes: 8388609\n"},
	{name: "duration: no unit", yaml: "poll:\n  heartbeat: 15\n"},
	{name: "duration: zero", args: []string{"--poll-heartbeat=0s"}},
	{name: "duration: negative", args: []string{"--drain-window=-1s"}},
	{name: "bool", environ: []string{"PUBSUBD_INSECURE=maybe"}},
	{name: "choice", yaml: "log:\n  format: xml\n"},
	{name: "address: no port", args: []string{"--listen-public=localhost"}},
	{name: "address: port too large", args: []string{"--listen-public=localhost:65536"}},
	{name: "address: IPv6 without brackets", args: []string{"--listen-public=::1:8080"}},
	{name: "address: URL", args: []string{"--listen-public=http://localhost:8080"}},
	{name: "address: empty", args: []string{"--listen-public="}},
	{name: "origin: a slash at the end", args: []string{"--cors-origins=https://app.example, https://other.example/"}},
	{name: "origin: no scheme", environ: []string{"PUBSUBD_CORS_ORIGINS=app.example"}},
	{name: "origin: null", yaml: "cors:\n  origins: [https://app.example, \"null\"]\n"},
	{name: "origin: * and another", yaml: "cors:\n  origins:\n  - \"*\"\n  - https://app.example\n"},
	{name: "origin: * without quotes", yaml: "cors:\n  origins: *\n"},
	{name: "origin: a list in the list", yaml: "cors:\n  origins:\n  - https://app.example\n  - [https://other.example]\n"},
	{name: "origin: twice", args: []string{"--cors-origins=https://app.example,https://app.example"}},

	{name: "unknown variable", environ: []string{"PUBSUBD_HISTORY_AEG=2m", "PUBSUBD_COLOUR=blue"}},
	{name: "history smaller than a message", environ: []string{"PUBSUBD_MESSAGE_BYTES=8MiB"}},
	{name: "history smaller than a message, by file", yaml: "history:\n  bytes: 32KiB\n"},
	{name: "rule: all at once", yaml: "topics:\n  prices:\n    patern: prices.>\n    history: {age: soon, size: 5}\n    slow: drop-oldest\n"},
	{name: "rule: no pattern", yaml: "topics:\n  prices:\n    history:\n      age: 5s\n"},
	{name: "rule: empty", yaml: "topics:\n  prices:\n"},
	{name: "rule: no pattern, by variable", environ: []string{"PUBSUBD_TOPICS_PRICES_HISTORY_AGE=5s"}},
	{name: "rule: no pattern, by flag", args: []string{"--topics", "prices.history.age=5s"}},
	{name: "rule: a pattern that continues after >", yaml: "topics:\n  prices:\n    pattern: prices.>.old\n"},
	{name: "rule: a wildcard in a token", environ: []string{"PUBSUBD_TOPICS_PRICES_PATTERN=prices.ac*"}},
	{name: "rule: an empty segment", args: []string{"--topics=prices.pattern=prices..>"}},
	{name: "rule: an empty pattern", args: []string{"--topics=prices.pattern="}},
	{name: "rule: a wildcard without quotes", yaml: "topics:\n  all:\n    pattern: *\n"},
	{name: "rule: > without quotes", yaml: "topics:\n  all:\n    pattern: >\n    slow: conflate\n"},
	{name: "rule: a pattern twice", yaml: "topics:\n  prices: {pattern: prices.>}\n", environ: []string{"PUBSUBD_TOPICS_MARKET_PATTERN=prices.>"}},
	{name: "rule: history smaller than a message", yaml: "topics:\n  prices:\n    pattern: prices.>\n    history:\n      bytes: 1KiB\n"},
	{name: "rule: history larger than the budget", environ: []string{"PUBSUBD_TOPICS_P_PATTERN=p", "PUBSUBD_TOPICS_P_HISTORY_BYTES=1GiB"}},
	{name: "a budget smaller than a history", args: []string{"--history-bytes=1GiB"}},
	{name: "rule: keep alone", yaml: "topics:\n  prices:\n    pattern: prices.>\n    keep: 5\n"},
	{name: "rule: keep with another policy", environ: []string{"PUBSUBD_TOPICS_P_PATTERN=p", "PUBSUBD_TOPICS_P_SLOW=resume"}, args: []string{"--topics=p.keep=5"}},
	{name: "rule: keep of zero", environ: []string{"PUBSUBD_TOPICS_P_PATTERN=p", "PUBSUBD_TOPICS_P_SLOW=drop_oldest", "PUBSUBD_TOPICS_P_KEEP=0"}},
	{name: "rule: a grace without presence", yaml: "topics:\n  prices:\n    pattern: prices.>\n    presence_grace: 5s\n"},
	{name: "rule: presence of the daemon's own topics", args: []string{"--topics=p.pattern=_presence.>", "--topics=p.presence=true"}},
	{name: "rule: ephemeral with a history", yaml: "topics:\n  typing:\n    pattern: chat.*.typing\n    ephemeral: true\n    history: {age: 5s}\n"},
	{name: "rule: ephemeral with a policy that needs a history", args: []string{"--topics=p.pattern=p", "--topics=p.ephemeral=true", "--topics=p.slow=conflate"}},
	{name: "rule: the daemon's own topics as ephemeral", args: []string{"--topics=p.pattern=_presence.>", "--topics=p.ephemeral=true"}},
	{name: "rule: an unknown policy", args: []string{"--topics=p.pattern=p", "--topics=p.slow=drop"}},
	{name: "rule: a name in capitals", yaml: "topics:\n  Prices: {pattern: prices.>}\n"},
	{name: "rule: a name with an underscore", yaml: "topics:\n  my_prices:\n    pattern: prices.>\n"},
	{name: "rule: a pattern for a name", yaml: "topics:\n  prices.>:\n    slow: conflate\n"},
	{name: "rule: a list", yaml: "topics:\n- pattern: prices.>\n"},
	{name: "rule: a value", yaml: "topics:\n  prices: conflate\n"},
	{name: "rule: duplicate", yaml: "topics:\n  prices: {pattern: prices.>}\n  prices: {pattern: prices.*}\n"},
	{name: "rule: a section for a value", yaml: "topics:\n  prices:\n    pattern: [a, b]\n    slow: {policy: conflate}\n"},
	{name: "rule: unknown variables", environ: []string{"PUBSUBD_TOPICS_PRICES=prices.>", "PUBSUBD_TOPICS_PRICES_PATERN=a", "PUBSUBD_TOPICS__PATTERN=a", "PUBSUBD_TOPICS_prices_PATTERN=a"}},
	{name: "rule: invalid flags", args: []string{"--topics=prices", "--topics=prices.patern=prices.>", "--topics=Prices.pattern=a", "--topics=pattern=a", "--topics="}},

	{name: "rate: a number alone", yaml: "rates:\n  publishes:\n    address: 100\n"},
	{name: "rate: zero", environ: []string{"PUBSUBD_RATES_POLLS_ALL=0/s"}},
	{name: "rate: another unit", args: []string{"--rates-sessions-address=5/d"}},
	{name: "rate: a burst without its word", yaml: "rates.requests.all: 100/s 500\n"},
	{name: "rate: a burst of zero", args: []string{"--rates-polls-address=100/s burst 0"}},
	{name: "rate: below the lowest", args: []string{"--rates-topics-principal=0.5/h"}},
	{name: "rate: an unknown scope", yaml: "rates:\n  publishes:\n    addresses: 5/s\n"},
	{name: "rate: an unknown kind", yaml: "rates:\n  publish:\n    address: 5/s\n"},
	{name: "rate: per principal, before the principal is known", environ: []string{"PUBSUBD_RATES_CONNECTIONS_PRINCIPAL=5/s"}},
	{name: "rate: per principal, for misses", yaml: "rates:\n  misses:\n    principal: 5/s\n"},
	{name: "rate: a kind without its scope", yaml: "rates:\n  polls: 5/s\n"},
	{name: "rate: more for one than for all", environ: []string{"PUBSUBD_RATES_POLLS_ADDRESS=10/s", "PUBSUBD_RATES_POLLS_ALL=300/m"}},
	{name: "rate: more for a principal than for all", yaml: "rates:\n  publishes: {all: 5/s, principal: 6/s burst 1}\n"},
	{name: "rate: more for a pattern than for all", yaml: "rates: {publishes: {all: 5/s}}\ntopics:\n  chat: {pattern: chat.*, rate: 10/s}\n"},
	{name: "rule: an invalid rate", args: []string{"--topics=chat.pattern=chat.*", "--topics=chat.rate=often"}},
	{name: "limits: zero, none or -1 for no bound", yaml: "limits:\n  connections: 0\n  address_connections: none\n  address_calls: -1\n"},
	{name: "limits: off where a bound is required", yaml: "limits:\n  calls: off\n  waiting_calls: 0\n"},
	{name: "limits: one address above all", args: []string{"--limits-connections=1000", "--limits-address-connections=1001"}},
	{name: "limits: calls of one address above all", yaml: "limits: {calls: 16, waiting_calls: 32, address_calls: 50}\n"},
	{name: "limits: subscriptions of one session above all", args: []string{"--limits-subscriptions=500"}, environ: []string{"PUBSUBD_LIMITS_ALL_SUBSCRIPTIONS=499"}},
	{name: "limits: fewer subscriptions than one session may have by default", yaml: "limits:\n  all_subscriptions: 999\n"},
	{name: "limits: a wait longer than an answer may take", environ: []string{"PUBSUBD_LIMITS_WAIT=1m"}},
	{name: "limits: an incomplete name", environ: []string{"PUBSUBD_LIMITS_PENDING_MESSAGES=5"}},
	{name: "hook: no secret", yaml: "hooks:\n  publish:\n    url: http://127.0.0.1:9000/publish\n"},
	{name: "hook: a short secret", environ: []string{"PUBSUBD_HOOKS_PUBLISH_SECRET=whsec_c2hvcnQ="}},
	{name: "hook: a short secret and a URL", yaml: "hooks:\n  publish:\n    url: http://127.0.0.1:9000/publish\n    secret: short\n"},
	{name: "hook: a secret with invalid base64", args: []string{"--hooks-publish-secret=whsec_hunter2 hunter2 hunter2"}},
	{name: "hook: a secret on two lines", environ: []string{"PUBSUBD_HOOKS_PUBLISH_SECRET=hunter2 hunter2 hunter2\nhunter2 hunter2 hunter2\n"}},
	{name: "hook: a secret with a space at its end", environ: []string{"PUBSUBD_HOOKS_PUBLISH_SECRET=hunter2 hunter2 hunter2 hunter2 \n"}},
	{name: "hook: a secret with a line break in its base64", environ: []string{"PUBSUBD_HOOKS_PUBLISH_SECRET=whsec_dHdlbnR5LWZvdXIg\nYnl0ZXMgb2YgaXQu"}},
	{name: "hook: a URL with an unescaped password", args: []string{"--hooks-publish-url=http://daemon:hun%ter2@app/"}},
	{name: "hook: an address with a password", args: []string{"--hooks-publish-url=daemon:hunter2@app/"}},
	{name: "hook: a URL with a password", args: []string{"--hooks-publish-url=http://daemon:hunter2@app/"}},
	{name: "hook: no URL", yaml: "hooks: {publish: {url: app.example/publish, secret: a secret of more than 24 bytes}}\n"},
	{name: "hook: no topics", environ: []string{"PUBSUBD_HOOKS_PUBLISH_TOPICS="}},
	{name: "hook: an invalid pattern, and no calls", args: []string{"--hooks-publish-topics=chat.*,prices.>.old"}, environ: []string{"PUBSUBD_HOOKS_PUBLISH_CALLS=0"}},
	{name: "authorize hook: no secret", yaml: "hooks:\n  authorize:\n    url: http://127.0.0.1:9000/authorize\n    cache: -1s\n"},
	{name: "hook: a pattern twice", yaml: "hooks:\n  publish:\n    topics: [\"chat.*\", \"chat.*\"]\n"},
	{name: "proxies: a name", yaml: "trusted_proxies: [proxy.example]\n"},
	{name: "proxies: a port", args: []string{"--trusted-proxies=10.0.0.7:8080"}},
	{name: "proxies: a zone", yaml: "trusted_proxies:\n- fe80::1%eth0\n"},
	{name: "proxies: bits beyond the network", environ: []string{"PUBSUBD_TRUSTED_PROXIES=127.0.0.1, 10.1.2.3/8"}},
	{name: "proxies: every address", yaml: "trusted_proxies: [127.0.0.1, 0.0.0.0/0]\n"},
	{name: "proxies: all of IPv6", yaml: "trusted_proxies: \"::/0\"\n"},
	{name: "proxies: IPv4 within IPv6", args: []string{"--trusted-proxies=::ffff:10.0.0.7"}},
	{name: "proxies: twice", yaml: "trusted_proxies: [10.0.0.7, 10.0.0.7/32]\n"},
	{name: "proxies: leading zeros, which may be octal", args: []string{"--trusted-proxies=010.0.0.7"}},

	{name: "a URL for an address", yaml: "listen:\n  public: https://push.example\n"},
	{name: "a number with separators", yaml: "limits:\n  sessions: 1_000_000\n"},
	{name: "a number with the suffix of another program", args: []string{"--limits-sessions=100k"}},
	{name: "yes for true", yaml: "insecure: yes\n"},
	{name: "a plural", yaml: "limit:\n  topics: 5\n"},
	{name: "a setting of another level", yaml: "age: 2m\n"},
	{name: "a flag's name in the file", yaml: "history-age: 2m\n"},
	{name: "a variable's name in the file", yaml: "PUBSUBD_HISTORY_AGE: 2m\n"},
	{name: "a variable in lower case", environ: []string{"PUBSUBD_history_age=2m"}},
	{name: "a directory for a file", args: []string{"--config=."}},
	{name: "JSON with too many commas", yaml: "{\"history\": {\"age\": \"2m\",},,}\n"},
	{name: "TLS: no key", yaml: "tls:\n  cert: cert.pem\n"},
	{name: "TLS: no certificate", environ: []string{"PUBSUBD_TLS_KEY=key.pem"}},
	{name: "TLS: no such certificate", yaml: "tls:\n  cert: missing.pem\n  key: key.pem\n"},
	{name: "TLS: a directory for a key", args: []string{"--tls-cert=cert.pem", "--tls-key=."}},
	{name: "TLS: the key of another certificate", yaml: "tls:\n  cert: cert.pem\n", args: []string{"--tls-key=other-key.pem"}},
	{name: "TLS: certificate and key swapped", args: []string{"--tls-cert=key.pem", "--tls-key=cert.pem"}},
	{name: "TLS: not PEM", environ: []string{"PUBSUBD_TLS_CERT=pubsubd.yaml", "PUBSUBD_TLS_KEY=key.pem"}},
	{name: "TLS: the certificate's file for a key", environ: []string{"PUBSUBD_TLS_CERT=cert.pem", "PUBSUBD_TLS_KEY=cert.pem"}},
	{name: "one address twice", args: []string{"--listen-admin=127.0.0.1:8080"}},
	{name: "public beyond loopback", args: []string{"--listen-public=:8080"}},
	{name: "admin beyond loopback", yaml: "listen:\n  admin: 0.0.0.0:8081\n"},
}
