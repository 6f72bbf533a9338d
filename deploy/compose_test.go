package deploy_test

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// compose.yaml runs the image as the docker run command at the head of the Dockerfile does, and
// names its volume.
func TestComposeRunsTheImageAsTheDockerfileSays(t *testing.T) {
	var compose struct {
		Services struct {
			Pubsubd struct {
				Build       struct{ Context, Dockerfile string }
				Environment map[string]string
				Ports       []string
				Volumes     []string
				ReadOnly    bool     `yaml:"read_only"`
				CapDrop     []string `yaml:"cap_drop"`
				SecurityOpt []string `yaml:"security_opt"`
				StopGrace   string   `yaml:"stop_grace_period"`
				Ulimits     map[string]string
				MemLimit    string `yaml:"mem_limit"`
				Image       string
				Restart     string
			}
		}
		Volumes map[string]any
	}
	require.NoError(t, yaml.UnmarshalWithOptions([]byte(read(t, "compose.yaml")), &compose, yaml.Strict()))
	c := compose.Services.Pubsubd
	require.Equal(t, "https://github.com/pubsubd/pubsubd.git", c.Build.Context)
	require.FileExists(t, filepath.Join("..", c.Build.Dockerfile))

	head := strings.ReplaceAll(read(t, "Dockerfile"), "\\\n#", "")
	command := regexp.MustCompile(`docker run (.*) pubsubd\n`).FindStringSubmatch(head)
	require.NotNil(t, command)
	for option, value := range map[string]string{
		"--read-only": "", "--cap-drop": c.CapDrop[0], "--security-opt": c.SecurityOpt[0], "--stop-timeout": strings.TrimSuffix(c.StopGrace, "s"),
		"--ulimit": "nofile=" + c.Ulimits["nofile"], "--memory": c.MemLimit, "-p": c.Ports[0], "-e GOMEMLIMIT": "=" + c.Environment["GOMEMLIMIT"],
	} {
		require.Contains(t, strings.Join(strings.Fields(command[1]), " "), strings.Replace(strings.TrimSpace(option+" "+value), " =", "=", 1))
	}
	require.True(t, c.ReadOnly)

	volume, folder, _ := strings.Cut(c.Volumes[0], ":")
	require.Contains(t, compose.Volumes, volume)
	require.Contains(t, read(t, "Dockerfile"), "\nVOLUME "+folder+"\n")

	environment := os.Environ()
	for name, value := range c.Environment {
		environment = append(environment, name+"="+value)
	}
	cfg, err := load(t, environment)
	require.NoError(t, err)
	require.Equal(t, ":8080", cfg.Listen.Public)
}

// publicKey is a key that nobody uses.
const publicKey = `-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
`

// compose.tls.yaml adds to compose.yaml. Together they are settings that the daemon accepts, with
// tokens and without insecure, and what Caddy needs fits the Caddyfile and the daemon.
func TestComposeWithTLSFitsTheDaemonAndTheCaddyfile(t *testing.T) {
	var base, tls struct {
		Services struct {
			Pubsubd struct {
				Environment map[string]string
				Volumes     []string
			}
			Caddy struct {
				Image       string
				Environment map[string]string
				Ports       []string
				Volumes     []string
				Networks    map[string]struct {
					Address string `yaml:"ipv4_address"`
				}
				Restart     string
				CapDrop     []string `yaml:"cap_drop"`
				CapAdd      []string `yaml:"cap_add"`
				SecurityOpt []string `yaml:"security_opt"`
				Ulimits     map[string]string
			}
		}
		Networks map[string]struct {
			Ipam struct{ Config []struct{ Subnet string } }
		}
		Volumes map[string]any
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "compose.yaml")), &base))
	require.NoError(t, yaml.UnmarshalWithOptions([]byte(read(t, "compose.tls.yaml")), &tls, yaml.Strict()))
	d, caddy := tls.Services.Pubsubd, tls.Services.Caddy

	variable := regexp.MustCompile(`\$\{SITE(?::\?[^}]+)?\}`)
	environment := map[string]string{}
	maps.Copy(environment, base.Services.Pubsubd.Environment)
	maps.Copy(environment, d.Environment)
	dir := t.TempDir() // stands for the folders of the container
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token.pub"), []byte(publicKey), 0o600))
	inHere := strings.NewReplacer("/etc/pubsubd", dir, "/var/lib/pubsubd", dir)
	list := os.Environ()
	for name, value := range environment {
		list = append(list, name+"="+inHere.Replace(variable.ReplaceAllString(value, "push.example.com")))
	}
	cfg, err := load(t, list)
	require.NoError(t, err)
	require.False(t, cfg.Insecure)
	require.True(t, cfg.Plaintext)
	require.NoError(t, cfg.Validate())
	require.Contains(t, cfg.WhoMay(), "token.pub")

	name, public, found := strings.Cut(caddy.Environment["UPSTREAM"], ":")
	require.True(t, found)
	require.Equal(t, "pubsubd", name, "the name of the service")
	require.Equal(t, cfg.Listen.Public, ":"+public)
	require.Equal(t, []string{"push.example.com", name}, cfg.Hosts)
	require.Equal(t, "${SITE}", caddy.Environment["SITE"])
	caddyfile := read(t, "caddy/Caddyfile")
	for name := range caddy.Environment {
		require.Contains(t, caddyfile, "{$"+name+":")
	}
	require.Contains(t, caddyfile, "health_port "+strings.TrimPrefix(cfg.Listen.Admin, ":")+"\n")

	address := netip.MustParseAddr(caddy.Networks["default"].Address)
	require.Equal(t, address.String(), environment["PUBSUBD_TRUSTED_PROXIES"])
	require.True(t, netip.MustParsePrefix(tls.Networks["default"].Ipam.Config[0].Subnet).Contains(address))

	for _, mount := range slices.Concat(d.Volumes, caddy.Volumes) {
		from, _, _ := strings.Cut(mount, ":")
		if !strings.HasPrefix(from, "./") {
			require.Contains(t, tls.Volumes, from)
		} else if from != "./keys" { // the guide makes it
			require.FileExists(t, from)
		}
	}
	require.True(t, strings.HasPrefix(environment["PUBSUBD_AUTH_KEYS"], "/etc/pubsubd/"), d.Volumes)
}
