package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNchanConf(t *testing.T) {
	var b strings.Builder
	require.NoError(t, nchanSettings{Module: "/modules/nchan.so", Port: 4100, Connections: 19900}.write(&b))
	wantGolden(t, "nchan.conf", b.String())
}

func TestNchanBuiltIntoNginxLoadsNoModule(t *testing.T) {
	var b strings.Builder
	require.NoError(t, nchanSettings{Port: 4100, Connections: 19900}.write(&b))
	require.NotContains(t, b.String(), "load_module")
}

func TestCentrifugoJSON(t *testing.T) {
	var b strings.Builder
	require.NoError(t, centrifugoSettings{Port: 4200, APIKey: "secret"}.write(&b))
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(b.String()), &got))
	require.EqualValues(t, 4200, got["port"])
	require.Equal(t, "secret", got["api_key"])
}

func TestMercureTokenMayPublish(t *testing.T) {
	parts := strings.Split(mercureToken("key"), ".")
	require.Len(t, parts, 3)
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(t, err)
	require.JSONEq(t, `{"mercure":{"publish":["*"]}}`, string(claims))
	require.NotEqual(t, mercureToken("key"), mercureToken("other"))
}

func TestVersionsAreThoseThatPeersGets(t *testing.T) {
	script, err := os.ReadFile("peers.sh")
	require.NoError(t, err)
	require.Contains(t, string(script), "centrifugo_version="+centrifugoVersion+"\n")
	require.Contains(t, string(script), "mercure_version="+mercureVersion+"\n")
}
