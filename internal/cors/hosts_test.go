package cors

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A page cannot make these its own: an address leads only to itself, and localhost only to
// its own machine.
var neverRebound = []string{
	"", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "10.0.0.7:80", "[fe80::1%eth0]:80",
	"localhost", "localhost:8080", "LocalHost.", "localhost.:8080",
}

var rebound = []string{
	"evil.example", "evil.example:8080", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example", "1.2.3.4.nip.io:8080",
	"notlocalhost", "localhost:80:80", "[evil.example]:80", "pubsubd", "*", "*.app.example", ".app.example", "a.b.app.example", "app.example.evil",
}

func TestAnEmptyListOnLoopbackAllowsNoName(t *testing.T) {
	h := NewHosts(nil, false, zap.NewNop())
	for _, host := range neverRebound {
		require.True(t, h.Allow(host), host)
	}
	for _, host := range append(rebound, "app.example") {
		require.False(t, h.Allow(host), host)
	}
}

func TestAnEmptyListBeyondLoopbackAllowsEveryName(t *testing.T) {
	h := NewHosts(nil, true, zap.NewNop())
	for _, host := range append(neverRebound, rebound...) {
		require.True(t, h.Allow(host), host)
	}
	h.Reload([]string{"app.example"})
	require.False(t, h.Allow("evil.example"))
}

func TestOnlyListedNamesAreAllowed(t *testing.T) {
	for _, isOpen := range []bool{false, true} {
		h := NewHosts([]string{"app.example", "*.live.example"}, isOpen, zap.NewNop())
		for _, host := range append([]string{"app.example", "APP.example:8080", "app.example.:1", "eu.live.example", "us.live.example:443"}, neverRebound...) {
			require.True(t, h.Allow(host), host)
		}
		for _, host := range append([]string{"live.example", "a.b.live.example", "www.app.example"}, rebound...) {
			require.False(t, h.Allow(host), host)
		}
	}
}

func TestEveryNameCanBeAllowed(t *testing.T) {
	h := NewHosts([]string{Every}, false, zap.NewNop())
	for _, host := range append(neverRebound, rebound...) {
		require.True(t, h.Allow(host), host)
	}
}

// A verdict about names can be kept until Names changes.
func TestAReloadChangesTheNames(t *testing.T) {
	h := NewHosts([]string{"old.example"}, false, zap.NewNop())
	was := h.InForce.Load()
	require.Same(t, was, h.InForce.Load())
	h.Reload([]string{"new.example"})
	require.NotSame(t, was, h.InForce.Load())
	require.True(t, h.Allow("new.example"))
	require.False(t, h.Allow("old.example"))
}

// The operator reads which name is missing. A Host that is no name may be a secret.
func TestRefusedNamesAreLoggedOnceAndSecretsNever(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	h := NewHosts(nil, false, zap.New(core))
	for range 3 {
		h.Allow("App.example.:8080")
	}
	for _, secret := range []string{strings.Repeat("a", 64) + ".eyJhbGciOiJ", "psk_" + strings.Repeat("A", 43), sessionID, strings.Repeat("a", 39), strings.Repeat("a", 21) + ".example", "pass word", "user@host", "a..b", strings.Repeat("a.", 127) + "b"} {
		h.Allow(secret)
	}
	require.Equal(t, 1, logged.Len())
	require.Equal(t, "app.example", logged.All()[0].ContextMap()["host"])
	for i := range 2 * maxRefused {
		h.Allow(fmt.Sprintf("n%d.example", i))
	}
	require.Equal(t, maxRefused, logged.Len())
}
