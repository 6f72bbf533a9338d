package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A setting that is a secret is shown nowhere.
func TestASecretIsShownNowhere(t *testing.T) {
	token, level := "hunter2", "info"
	rows := []setting{
		{"auth.token", live(secret(path(&token))), "a secret"},
		{"log.level", choice(&level, "info", "warn"), "none"},
	}
	require.Equal(t, "auth:\n  token: \"(secret)\" # pubsubd.yaml:2\nlog:\n  level: info\n", yamlOf(rows, map[string]string{"auth.token": "pubsubd.yaml:2"}))
	require.Equal(t, "# PUBSUBD_AUTH_TOKEN is a secret: set it yourself\nPUBSUBD_LOG_LEVEL=info\n", environmentOf(rows))

	changes := changesOf(rows[:1], []setting{{"auth.token", live(secret(path(new(string)))), ""}})
	require.Equal(t, []Change{{Key: "auth.token", Old: masked, New: "", Live: true}}, changes)

	strict := secret(choice(&level, "info", "warn"))
	r := newReading(new(Config))
	r.set(setting{"auth.token", strict, ""}, "hunter2", "flag --auth-token")
	require.EqualError(t, join(r.wrong), `flag --auth-token: auth.token is "(secret)": want info or warn`)
}

func TestTheHooksSecretIsOne(t *testing.T) {
	c := Default()
	c.PublishHook.URL, c.PublishHook.Secret = "http://127.0.0.1:9000/", "hunter2 hunter2 hunter2 hunter2"
	require.NoError(t, c.Validate())
	said := Said{Config: c}
	require.NotContains(t, said.YAML()+said.Environment()+said.Summary(), "hunter2")
	for _, change := range Default().Changes(c) {
		require.NotContains(t, change.New+change.Old, "hunter2")
	}
	c.PublishHook.Secret = "hunter2"
	require.ErrorContains(t, c.Validate(), "24 are needed")
	require.NotContains(t, c.Validate().Error(), "hunter2")
}

// What the setting has is shown as it is, whatever it resembles.
func TestAHookURLIsShownWhole(t *testing.T) {
	const url = "http://127.0.0.1:9000/@publish?to=me@example.com"
	c := Default()
	c.PublishHook.URL, c.PublishHook.Secret = url, "hunter2 hunter2 hunter2 hunter2"
	require.NoError(t, c.Validate())
	require.Contains(t, Said{Config: c}.YAML(), url)
	require.Equal(t, url, Default().Changes(c)[0].New)
	c.PublishHook.Secret = ""
	require.ErrorContains(t, c.Validate(), url)
}

func TestAnOptionalFieldCanOnlyBeLeftOut(t *testing.T) {
	var n int
	f := optional(count(&n, 0, 10))
	require.NoError(t, f.check())
	require.False(t, f.said())
	require.Empty(t, f.text())
	require.Error(t, f.set("0"))
	require.NoError(t, f.set("5"))
	require.True(t, f.said())
	require.Equal(t, "5", f.text())
	n = 11
	require.Error(t, f.check())
}
