package config

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// load reads the three sources as the daemon does. Without yaml it names no file.
func load(t *testing.T, yaml string, environ []string, args ...string) (Config, error) {
	t.Helper()
	if yaml != "" {
		file := filepath.Join(t.TempDir(), "pubsubd.yaml")
		require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
		args = append(args, "--config", file)
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	l := Bind(fs)
	require.NoError(t, fs.Parse(args))
	loaded, err := l.Load(environ)
	return loaded.Config, err
}

// Editors begin a file with a byte order mark, or end it with a newline. Neither is part of a
// secret that comes from such a file, nor of the first key of the configuration file.
func TestWhatAnEditorAddsIsNotPartOfASecret(t *testing.T) {
	const want = "24 bytes, more or a few more"
	for _, text := range []string{want, want + "\n", want + "\r\n", want + "\r", "\ufeff" + want, "\ufeff" + want + "\r\n"} {
		for _, hook := range []string{"publish", "authorize", "events"} {
			c, err := load(t, "", []string{"PUBSUBD_HOOKS_" + strings.ToUpper(hook) + "_SECRET=" + text})
			require.NoError(t, err)
			flag, err := load(t, "", nil, "--hooks-"+hook+"-secret="+text)
			require.NoError(t, err)
			file, err := load(t, "\ufeffhooks:\r\n  "+hook+".secret: "+strconv.Quote(text)+"\r\n", nil)
			require.NoError(t, err)
			for _, c := range []Config{c, flag, file} {
				require.Equal(t, want, c.PublishHook.Secret+c.AuthorizeHook.Secret+c.EventsHook.Secret, "%q", text)
			}
		}
	}
}

// nested writes a dotted key as YAML levels.
func nested(key, text string) string {
	var b strings.Builder
	levels := strings.Split(key, ".")
	for i, level := range levels {
		b.WriteString(strings.Repeat("  ", i) + level + ":")
		if i < len(levels)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + text + "\n"
}

// other returns a valid text for the setting that differs from its default.
func other(t *testing.T, s setting) string {
	t.Helper()
	byKind := map[string]string{
		"count": "77", "bytes": "123KiB", "duration": "17s", "bool": "true", "host:port": "127.0.0.1:7777", "file": "/run/addresses.json",
		"names": "app.example,live.example", "email": "ops@app.example", "origins": "https://app.example,http://localhost:3000", "rate": "2/m burst 9", "url": "http://127.0.0.1:9000/?a=b", "secret": "24 bytes, more or a few more", "patterns": "chat.*,prices.>", "files": "/run/a.pem,/run/b.json", "text": "x y", "claims": "name,picture", "rights": `[{"topics":["a.$sub"],"allow":["publish"]}]`, "addresses": "10.1.0.0/16,192.0.2.7,::1,fd00::/8",
	}
	byKey := map[string]string{"tls.acme.directory": "https://ca.example/directory", "log.level": "warn", "log.format": "console", "lane": "channel", "store.sync": "always", "store.bytes": "77MiB", "history.bytes": "2MiB", "listen.public": "127.0.0.1:7776", "listen.admin": "127.0.0.1:7778", "admin.key_file": "testdata/admin.key", "poll.write_timeout": "40s", "memory.budget": "64MiB", "auth.jwks": "https://login.example/jwks?a=b", "limits.all_subscriptions": "7777"}
	text, ok := byKey[s.key]
	if !ok {
		text, ok = byKind[s.kind]
	}
	require.True(t, ok, "%s: add a value for its kind or its key", s.key)
	require.NotEqual(t, s.text(), text)
	return text
}

func TestEverySettingFromEverySource(t *testing.T) {
	c := Default()
	for _, s := range settings(&c) {
		def, changed := s.text(), other(t, s)
		file, env, arg := nested(s.key, changed), s.env()+"="+changed, "--"+s.flag()+"="+changed
		envDefault := s.env() + "=" + def
		for _, tt := range []struct {
			name    string
			file    string
			environ []string
			args    []string
			want    string
		}{
			{"nothing", "", nil, nil, def},
			{"file", file, nil, nil, changed},
			{"environment", "", []string{env}, nil, changed},
			{"flag", "", nil, []string{arg}, changed},
			{"environment over file", file, []string{envDefault}, nil, def},
			{"flag over environment", "", []string{envDefault}, []string{arg}, changed},
			{"flag over environment over file", file, []string{envDefault}, []string{arg}, changed},
		} {
			t.Run(s.key+"/"+tt.name, func(t *testing.T) {
				got, err := load(t, tt.file, tt.environ, tt.args...)
				if !strings.HasPrefix(s.key, "tls.") && !strings.HasPrefix(s.key, "auth.") && !(strings.HasPrefix(s.key, "hooks.") && strings.HasSuffix(s.key, ".url")) && s.key != "listen.acme" { // half of a pair is read, and then refused
					require.NoError(t, err)
				}
				require.Equal(t, tt.want, textOf(t, &got, s.key))
			})
		}
	}
}

func textOf(t *testing.T, c *Config, key string) string {
	t.Helper()
	for _, s := range settings(c) {
		if s.key == key {
			return s.text()
		}
	}
	t.Fatalf("no setting %s", key)
	return ""
}

func TestPrecedence(t *testing.T) {
	const file = "history:\n  age: 2m\n  messages: 20\n  bytes: 2MiB\n"
	environ := []string{"PUBSUBD_HISTORY_AGE=3m", "PUBSUBD_HISTORY_MESSAGES=30", "HOME=/root"}
	c, err := load(t, file, environ, "--history-age", "4m", "--insecure")
	require.NoError(t, err)
	require.Equal(t, 4*time.Minute, c.Broker.HistoryAge, "flag")
	require.Equal(t, 30, c.Broker.HistoryMessages, "environment")
	require.Equal(t, 2<<20, c.Broker.HistoryBytes, "file")
	require.Equal(t, 64<<10, c.MessageBytes, "default")
	require.True(t, c.Insecure, "a bare flag")
}

func TestPlainYAMLValues(t *testing.T) {
	const file = "listen: # comment\n  public: \"[::1]:80\"  # quoted, as it begins with a bracket\n  admin: 'localhost:81'\n" +
		"insecure: true\nhistory: {bytes: 2097152, age: 1h30m}\npoll:\n  timeout: \"5s\"\naddresses_file: /run/pubsubd/addresses.json\n"
	c, err := load(t, file, nil)
	require.NoError(t, err)
	require.Equal(t, Listen{Public: "[::1]:80", Admin: "localhost:81"}, c.Listen)
	require.True(t, c.Insecure)
	require.Equal(t, 2<<20, c.Broker.HistoryBytes)
	require.Equal(t, 90*time.Minute, c.Broker.HistoryAge)
	require.Equal(t, 5*time.Second, c.Transport.PollTimeout)
	require.Equal(t, "/run/pubsubd/addresses.json", c.AddressesFile)

	c, err = load(t, "listen:\n  public: :80\n  admin: :0\ninsecure: true", nil)
	require.NoError(t, err)
	require.Equal(t, Listen{Public: ":80", Admin: ":0"}, c.Listen)
}

func TestFileNamedByEnvironmentOrFlag(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one.yaml"), filepath.Join(dir, "two.yaml")
	require.NoError(t, os.WriteFile(one, []byte("log: {level: warn}"), 0o600))
	require.NoError(t, os.WriteFile(two, []byte("log.level: error"), 0o600))

	c, err := load(t, "", []string{"PUBSUBD_CONFIG=" + one})
	require.NoError(t, err)
	require.Equal(t, "warn", c.Log.Level)

	c, err = load(t, "", []string{"PUBSUBD_CONFIG=" + one}, "--config", two)
	require.NoError(t, err)
	require.Equal(t, "error", c.Log.Level)
}

// A reload reads the file again. It forgets the settings of the previous read.
func TestLoadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pubsubd.yaml")
	write := func(yaml string) { require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600)) }
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	l := Bind(fs)
	require.NoError(t, fs.Parse([]string{"--config", file}))

	write("history: {age: 2m}")
	c, err := l.Load(nil)
	require.NoError(t, err)
	require.Equal(t, 2*time.Minute, c.Broker.HistoryAge)

	write("log: {level: warn}")
	c, err = l.Load(nil)
	require.NoError(t, err)
	require.Equal(t, Default().Broker, c.Broker)
	require.Equal(t, "warn", c.Log.Level)
}

func TestSectionsMayBeEmpty(t *testing.T) {
	for _, yaml := range []string{
		"# a\n# b\nhistory: # c\n  # d\n\n# e\nlog.level: info", "history:\n  # age: 2m\nlog:\n  level: info\n", "{}", "history: {}", "history: {}\nlog:\n",
	} {
		c, err := load(t, yaml, nil)
		require.NoError(t, err, "%q", yaml)
		require.Equal(t, Default(), c, "%q", yaml)
	}
}

// A file without settings, or with sections only, was cut off or is still being written.
func TestAnEmptyFileIsReported(t *testing.T) {
	for _, yaml := range []string{"\n", " \n\t\n", "# nothing\n", "---\n", "---\n# nothing\n", "...\n", "null\n", "~\n", "# a\n---\n# b\n---\nlog: {level: warn}\n", "history:\n", "history:\n  # age: 2m\nlog:\n"} {
		_, err := load(t, yaml, nil)
		require.ErrorContains(t, err, "pubsubd.yaml: the file holds no settings", "%q", yaml)
	}
	file := filepath.Join(t.TempDir(), "pubsubd.yaml")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := load(t, "", nil, "--config", file)
	require.ErrorContains(t, err, "pubsubd.yaml: the file holds no settings")
}

// Kubernetes sets these variables in a pod beside a Service named pubsubd.
func TestKubernetesVariablesAreNotOurs(t *testing.T) {
	_, err := load(t, "", []string{
		"PUBSUBD_PORT=tcp://10.0.0.1:80", "PUBSUBD_PORT_80_TCP=tcp://10.0.0.1:80", "PUBSUBD_PORT_80_TCP_ADDR=10.0.0.1",
		"PUBSUBD_SERVICE_HOST=10.0.0.1", "PUBSUBD_SERVICE_PORT=80", "PUBSUBD_SERVICE_PORT_HTTP=80",
		"PUBSUBD_ADMIN_PORT=tcp://10.0.0.1:80", "PUBSUBD_ADMIN_PORT_80_TCP=tcp://10.0.0.1:80", "PUBSUBD_ADMIN_PORT_80_TCP_PROTO=tcp",
		"PUBSUBD_ADMIN_SERVICE_HOST=10.0.0.1", "PUBSUBD_TOPICS_A_SERVICE_PORT=80", "PUBSUBD_ADMIN_SERVICE_PORT_HTTP=80",
	})
	require.NoError(t, err)

	for _, name := range []string{"PUBSUBD_PORTS", "PUBSUBD_SERVICE", "PUBSUBD_SERVICE_HOSTS", "PUBSUBD_HOST", "PUBSUBD_LISTEN_PORT", "PUBSUBD_ADMIN_PORT_NAME"} {
		_, err = load(t, "", []string{name + "=x"})
		require.ErrorContains(t, err, name+" is not known")
	}
}

// The commands beside serve have the same environment.
func TestVariablesOfTheCommandsAreNotSettings(t *testing.T) {
	var environ []string
	for _, name := range CommandVariables() {
		_, known := newReading(new(Config)).find(setting.env, name)
		require.False(t, known, name)
		environ = append(environ, name+"=x")
	}
	_, err := load(t, "", environ)
	require.NoError(t, err)
	_, err = load(t, "", []string{"PUBSUBD_SERVR=x"})
	require.ErrorContains(t, err, "PUBSUBD_SERVR is not known: `pubsubd config doc` describes the settings")
}

func TestErrorsHaveAKeyAndAnOrigin(t *testing.T) {
	_, err := load(t, "", []string{"PUBSUBD_HISTORY_AGE=soon"})
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "history.age", e.Key)
	require.Equal(t, "environment variable PUBSUBD_HISTORY_AGE", e.Where)
}
