package cors

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// observed returns a policy that allows one origin, and its log.
func observed() (*Policy, *observer.ObservedLogs) {
	core, logged := observer.New(zap.DebugLevel)
	return New([]string{"https://app.example"}, zap.New(core)), logged
}

// said returns the origins that were logged since the last call.
func said(logged *observer.ObservedLogs) (origins []string) {
	for _, e := range logged.TakeAll() {
		origins = append(origins, fmt.Sprint(e.ContextMap()["origin"]))
	}
	return origins
}

func TestARefusedOriginIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, logged := observed()
		for range 3 {
			for range 100 {
				p.LogRefused("http://localhost:3000")
				p.LogRefused("http://127.0.0.1:3000")
				p.LogRefused("https://app.example")
				time.Sleep(refusedEvery / 200)
			}
			require.Equal(t, []string{"http://localhost:3000", "http://127.0.0.1:3000"}, said(logged))
			time.Sleep(refusedEvery / 2)
		}
	})
}

func TestTheLogOfARefusedOriginNamesTheRemedy(t *testing.T) {
	p, logged := observed()
	p.LogRefused("http://localhost:3000")
	p.LogRefused("null")
	entries := logged.TakeAll()
	require.Len(t, entries, 2)
	for _, word := range []string{"cors.origins", "http://localhost", "http://127.0.0.1"} {
		require.Contains(t, entries[0].Message, word)
	}
	require.Contains(t, entries[1].Message, "file")
	require.Equal(t, zap.WarnLevel, entries[0].Level)
}

// A client that sends ever new origins fills neither the log nor the memory. A minute later
// other origins are logged again.
func TestTheLogOfRefusedOriginsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, logged := observed()
		for n := range 10 * maxRefused {
			p.LogRefused(fmt.Sprintf("https://%d.example", n))
		}
		require.Len(t, said(logged), maxRefused)
		require.Len(t, p.refusals.logged, maxRefused)
		time.Sleep(refusedEvery)
		p.LogRefused("https://another.example")
		require.Equal(t, []string{"https://another.example"}, said(logged))
		require.Len(t, p.refusals.logged, 1)
	})
}

// sessionID is as long as the id of a session.
const sessionID = "abcdefghijklmnopqrstuvwxy-1"

// Text that no browser sends may be anything, so it is not logged. The same holds for names that
// could be secrets.
func TestOnlyOriginsAreLogged(t *testing.T) {
	p, logged := observed()
	for _, text := range []string{
		"", "token", "https://", "https://user:password@app.example", "https://app.example/path", "https://app.example?token=1",
		"https://app.example#x", "https://app example", "https://a\n.example", "https://" + strings.Repeat("a", maxOriginBytes) + ".example",
		"https://app\u202e.example", "https://[fe80::1%25secret]", "https://psk_" + strings.Repeat("a", 43), "https://" + sessionID, "https://" + sessionID + ".example", "https://password1",
		"chrome-extension://mfaihdlpglflfgpfjcifdjdjcckigekc", strings.Repeat("a", 43) + "://app.example",
	} {
		p.LogRefused(text)
	}
	require.Empty(t, said(logged))
	browsers := []string{"https://app.example:8443", "http://[::1]:3000", "http://10.0.0.7", "capacitor://localhost"}
	for _, text := range browsers {
		p.LogRefused(text)
	}
	require.Equal(t, browsers, said(logged))
}

func TestNothingIsLoggedWhereEveryOriginIsAllowed(t *testing.T) {
	p := New([]string{Every}, nil)
	p.LogRefused("https://app.example")
}
