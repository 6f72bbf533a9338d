package pubsub_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/token"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
)

// The Go code in BUILDING.md compiles: each block is a part of this file.
func TestTheExamplesOfBuildingCompile(t *testing.T) {
	_ = publishFromABackEnd
	source, err := os.ReadFile("building_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(building(t), -1)
	require.Len(t, blocks, 2)
	for _, block := range blocks {
		require.Contains(t, dedented(string(source)), dedented(block[1]))
	}
}

func building(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../BUILDING.md")
	require.NoError(t, err)
	return string(text)
}

// A daemon accepts the token that the example signs, with the rights that the document shows.
func TestTheExampleOfBuildingSignsAToken(t *testing.T) {
	private, public, err := token.GenerateKey("EdDSA")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(file, private, 0o600))
	require.NoError(t, os.WriteFile(file+".pub", public, 0o600))
	_, rest, found := strings.Cut(building(t), "```json\n")
	require.True(t, found)
	rights, _, _ := strings.Cut(rest, "```")

	key, err := readKey(file)
	require.NoError(t, err)
	signed, err := pushToken(key, "alice", "Alice", json.RawMessage(rights))
	require.NoError(t, err)
	inspected, err := token.Inspect(t.Context(), auth.Config{Keys: []string{file + ".pub"}, TokenMaxAge: time.Hour}, signed, time.Now())
	require.NoError(t, err)
	require.True(t, inspected.Checked)
	require.Nil(t, inspected.Refused)
	for topic, want := range map[string]bool{"chat.42": true, "inbox.alice": true, "inbox.bob": false, "chat.43": false} {
		allowed, why, err := inspected.Rights.Explain("subscribe", topic)
		require.NoError(t, err)
		require.Equal(t, want, allowed, why)
	}
}

func publishFromABackEnd(ctx context.Context) error {
	key, err := os.ReadFile("shop.key")
	if err != nil {
		return err
	}
	push, err := pubsub.New("https://push.example.com", pubsub.WithToken(string(key)))
	if err != nil {
		return err
	}
	defer push.Close()
	_, err = push.PublishJSON(ctx, "inbox.alice", map[string]string{"text": "Your order is on its way"}, pubsub.WithIdempotencyKey("order-17-sent"))
	return err
}

func readKey(file string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New(file + " is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	return key.(ed25519.PrivateKey), nil
}

func pushToken(key ed25519.PrivateKey, id, name string, rights any) (string, error) {
	now := time.Now().Unix()
	claims, err := json.Marshal(map[string]any{"sub": id, "name": name, "iat": now, "exp": now + 900, "pubsub": rights})
	if err != nil {
		return "", err
	}
	part := base64.RawURLEncoding.EncodeToString
	text := part([]byte(`{"alg":"EdDSA","typ":"JWT"}`)) + "." + part(claims)
	return text + "." + part(ed25519.Sign(key, []byte(text))), nil
}
