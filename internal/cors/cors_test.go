package cors

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func announced(p *Policy, origin string) http.Header {
	h := http.Header{}
	p.Announce(h, origin)
	return h
}

func TestNoOriginIsAllowedUnlessOneIsNamed(t *testing.T) {
	p := New(nil, zap.NewNop())
	require.Equal(t, 1, p.Indices())
	require.Zero(t, p.Index("https://app.example"))
	require.False(t, p.Allows("https://app.example"))
	require.False(t, p.Allows(""))
	require.Empty(t, announced(p, "https://app.example"))
}

func TestOnlyAllowedOriginsGetCORSHeaders(t *testing.T) {
	p := New([]string{"https://app.example", "http://localhost:3000"}, zap.NewNop())
	require.Equal(t, 3, p.Indices())
	for _, origin := range []string{"https://app.example", "http://localhost:3000"} {
		require.True(t, p.Allows(origin))
		require.Equal(t, origin, p.Allowed(p.Index(origin)))
		require.Equal(t, http.Header{"Access-Control-Allow-Origin": {origin}, "Access-Control-Expose-Headers": {Expose}, "Vary": {"Origin"}}, announced(p, origin))
	}
	for _, origin := range []string{"", "null", "*", "https://App.example", "https://app.example:443", "http://app.example", "https://sub.app.example", "http://localhost"} {
		require.False(t, p.Allows(origin), origin)
		require.Equal(t, http.Header{"Vary": {"Origin"}}, announced(p, origin))
	}
}

func TestEveryOriginIsAnsweredAlike(t *testing.T) {
	p := New([]string{Every}, zap.NewNop())
	require.Equal(t, 1, p.Indices())
	for _, origin := range []string{"", "null", "https://app.example"} {
		require.True(t, p.Allows(origin))
		require.Equal(t, http.Header{"Access-Control-Allow-Origin": {"*"}, "Access-Control-Expose-Headers": {Expose}}, announced(p, origin))
	}
}
