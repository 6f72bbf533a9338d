package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The key is read each time, so that it can be replaced at any time.
func TestTheKeyOfOperatorsIsReadAgain(t *testing.T) {
	c := Default()
	key, err := c.Admin.Key()
	require.NoError(t, err)
	require.Nil(t, key, "none is set")

	c.Admin.KeyFile = filepath.Join(t.TempDir(), "admin.key")
	require.ErrorContains(t, c.Validate(), "admin.key_file is")
	for _, want := range []string{strings.Repeat("k", minAdminKey), strings.Repeat("q", maxAdminKey-6)} {
		require.NoError(t, os.WriteFile(c.Admin.KeyFile, []byte("\ufeff "+want+"\r\n"), 0o600))
		require.NoError(t, c.Validate())
		key, err = c.Admin.Key()
		require.NoError(t, err)
		require.Equal(t, want, string(key))
	}
	for _, wrong := range []string{"", "secret-but-short", strings.Repeat("secret", maxAdminKey), "secret-of-the-first-line\nand-of-the-second"} {
		require.NoError(t, os.WriteFile(c.Admin.KeyFile, []byte(wrong), 0o600))
		err := c.Validate()
		require.ErrorContains(t, err, "openssl rand")
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestListenersMayBeUnixSockets(t *testing.T) {
	for address, valid := range map[string]bool{
		"unix:/run/pubsubd/admin.sock":                   true,
		"unix:/" + strings.Repeat("x", maxSocketBytes-1): true,
		"unix:/" + strings.Repeat("x", maxSocketBytes):   false,
		"unix:admin.sock":                                false,
		"unix:":                                          false,
		"unix:/":                                         false,
		"/run/admin.sock":                                false,
	} {
		admin, public := Default(), Default()
		admin.Listen.Admin, public.Listen.Public = address, address
		for _, c := range []Config{admin, public} {
			if valid {
				require.NoError(t, c.Validate(), address)
				continue
			}
			socket := "unix:/run/pubsubd/public.sock"
			if c.Listen.Admin == address {
				socket = "unix:/run/pubsubd/admin.sock"
			}
			require.ErrorContains(t, c.Validate(), socket, address)
		}
	}
	c := Default()
	c.Listen.Public, c.Listen.Admin = "unix:/run/pubsubd/one.sock", "unix:/run/pubsubd/one.sock"
	require.ErrorContains(t, c.Validate(), "listen.admin")
	c = Default()
	c.Listen.TCP = "unix:/run/pubsubd/tcp.sock"
	require.ErrorContains(t, c.Validate(), "listen.tcp")
}

func TestDaemonsCannotShareUnixSockets(t *testing.T) {
	c := Default()
	c.Listen.ReusePort = true
	require.NoError(t, c.Validate())
	c.Listen.Admin = "unix:/run/pubsubd/admin.sock"
	require.ErrorContains(t, c.Validate(), "listen.admin is a Unix socket")
	c.Listen.Public, c.Listen.Admin = "unix:/run/pubsubd/public.sock", Default().Listen.Admin
	require.ErrorContains(t, c.Validate(), "listen.public is a Unix socket")
}

// Only this machine reaches a Unix socket, as with loopback: it needs no authorisation, and it
// accepts only the names of hosts.
func TestAUnixSocketForClientsIsAsLoopback(t *testing.T) {
	c := Default()
	c.Listen.Public = "unix:/run/pubsubd/public.sock"
	require.NoError(t, c.Validate())
	everyHost, _ := c.AcceptsEveryHost()
	require.False(t, everyHost)
	c.Auth.Anonymous = `[{"topics":[">"],"allow":["subscribe"]}]`
	require.NotContains(t, c.WhoMay(), "clear text")
}
