package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
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
