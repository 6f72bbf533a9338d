package daemon

import (
	"crypto/tls"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	tools "github.com/pubsubd/pubsubd/internal/token"
)

// deploy/compose.tls.yaml without Docker: a daemon with its settings, behind Caddy with its
// Caddyfile and a certificate that Caddy signs, serves those who have a token. The key is made
// as deploy/README.md says.
func TestComposeWithTLSServesThoseWithAToken(t *testing.T) {
	caddy := proxyKinds[2]
	require.Equal(t, "caddy", caddy.name)
	binary := caddy.find(t)
	dir := t.TempDir()
	private := keysOfTheGuide(t, dir)

	at := freePort(t)
	variables := composed(t, "localhost")
	environment := []string{}
	for name, value := range variables {
		environment = append(environment, name+"="+strings.NewReplacer("/etc/pubsubd", filepath.Join(dir, "keys"), "/var/lib/pubsubd", dir).Replace(value))
	}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	loader := config.Bind(flags)
	require.NoError(t, flags.Parse(nil))
	loaded, err := loader.Load(environment)
	require.NoError(t, err)
	d := start(t, func(c *config.Config) {
		listen := c.Listen
		*c = loaded.Config
		c.Listen = listen
	})

	t.Setenv("SITE", "localhost:"+port(at))
	t.Setenv("UPSTREAM", d.PublicAddr())
	caddy.swaps = func(_, first address) []string {
		return []string{"\tadmin off\n", "\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n", "health_port 8081", "health_port " + port(first.admin)}
	}
	file := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(file, []byte(caddy.config(t, address{}, []address{d.address()}, asShipped)), 0o600))
	said := &output{dir: dir}
	runProxy(t, said, binary, []string{"run", "--adapter", "caddyfile", "--config", file})

	network := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as curl -k: nobody trusts Caddy's own authority
	t.Cleanup(network.CloseIdleConnections)
	client := &http.Client{Transport: network, Timeout: aMinute}
	ask := func(path, token string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost:"+port(at)+path, nil)
		require.NoError(t, err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	token, err := tools.Issue(private, tools.Draft{Subject: "alice", Issued: time.Now(), TTL: time.Minute, Rights: []byte(`[{"topics":["chat.>"],"allow":["subscribe"]}]`)})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return ask("/v1/topics", token) == http.StatusOK }, surely, 10*time.Millisecond)
	require.Equal(t, http.StatusUnauthorized, ask("/v1/topics", ""))
	require.Equal(t, http.StatusNotFound, ask("/metrics", ""))
}

// keysOfTheGuide runs the commands of the guide that make the keys, and returns the private one.
func keysOfTheGuide(t *testing.T, dir string) []byte {
	t.Helper()
	guide, err := os.ReadFile("../../deploy/README.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(guide), "\n### Compose with TLS and tokens\n")
	require.True(t, found)
	commands := regexp.MustCompile(`(?m)^.*openssl .*\n`).FindAllString(section, 2)
	require.Len(t, commands, 2)
	shell := exec.CommandContext(t.Context(), "sh", "-ec", strings.Join(commands, ""))
	shell.Dir = dir
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	private, err := os.ReadFile(filepath.Join(dir, "token.pem"))
	require.NoError(t, err)
	return private
}

// composed returns the environment that compose.yaml and compose.tls.yaml give the daemon.
func composed(t *testing.T, site string) map[string]string {
	t.Helper()
	environment := map[string]string{}
	for _, file := range []string{"compose.yaml", "compose.tls.yaml"} {
		text, err := os.ReadFile("../../deploy/" + file)
		require.NoError(t, err)
		var compose struct {
			Services struct {
				Pubsubd struct{ Environment map[string]string }
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(regexp.MustCompile(`\$\{SITE(:\?[^}]+)?\}`).ReplaceAllString(string(text), site)), &compose))
		for name, value := range compose.Services.Pubsubd.Environment {
			environment[name] = value
		}
	}
	return environment
}
