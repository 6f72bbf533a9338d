package main

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A chat gives people tokens, and decides what the daemon publishes.
type chat struct {
	life      time.Duration // of a token
	signer    jose.Signer
	hook      *webhooks.Webhook
	mu        sync.Mutex        // guards the fields below
	owners    map[string]string // by name: the secret of its first user
	moderator string            // the first user of all
}

// newChat makes a pair of keys, and writes the public one into a file. It returns the daemon's settings.
func newChat(pages, file string, life time.Duration) (*chat, []string, error) {
	public, private, err := ed25519.GenerateKey(nil)
	key, err2 := json.Marshal(jose.JSONWebKey{Key: public, Algorithm: "EdDSA"})
	signer, err3 := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: private}, nil)
	secret := rand.Text()
	hook, err4 := webhooks.NewWebhookRaw([]byte(secret))
	return &chat{life: life, signer: signer, hook: hook, owners: map[string]string{}}, []string{
		"PUBSUBD_AUTH_KEYS=" + file, "PUBSUBD_AUTH_PUBLIC_CLAIMS=name", "PUBSUBD_HOOKS_PUBLISH_TOPICS=chat.*",
		"PUBSUBD_TOPICS_CHAT_PATTERN=chat.*", "PUBSUBD_TOPICS_CHAT_HISTORY_AGE=1h", "PUBSUBD_TOPICS_CHAT_IDENTITY=true", "PUBSUBD_TOPICS_CHAT_PRESENCE=true",
		"PUBSUBD_HOOKS_PUBLISH_SECRET=" + secret, "PUBSUBD_HOOKS_PUBLISH_URL=" + pages + "/chat/hook",
	}, errors.Join(err, err2, err3, err4, os.WriteFile(file, key, 0o600))
}

// login answers with a token. A name belongs to its first user.
func (c *chat) login(w http.ResponseWriter, r *http.Request) {
	var who struct{ Name, Secret string }
	err := json.NewDecoder(r.Body).Decode(&who)
	subject, now := strings.ToLower(who.Name), time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner, taken := c.owners[subject]; err != nil || wire.CheckTopic(subject) != nil || taken && owner != who.Secret || !taken && len(c.owners) == 1000 {
		http.Error(w, `{"detail":"choose another name of letters and digits: this one is taken or not allowed"}`, http.StatusForbidden)
		return
	}
	c.owners[subject], c.moderator = who.Secret, cmp.Or(c.moderator, subject)
	topics, allow := []string{"chat.lobby", "chat.help"}, []string{"subscribe", "publish", "presence"}
	if subject == c.moderator {
		topics, allow = []string{"chat.*"}, append(allow, "delete")
	}
	claims := map[string]any{"sub": subject, "name": who.Name, "iat": now.Unix(), "exp": now.Add(c.life).Unix(), "pubsub": []any{map[string]any{"topics": topics, "allow": allow}}}
	token, err := jwt.Signed(c.signer).Claims(claims).Serialize()
	_ = errors.Join(err, json.NewEncoder(w).Encode(map[string]string{"token": token})) // it fails if the page has left
}

// moderate tells the daemon to publish the text of a message and nothing else, or to refuse the message.
func (c *chat) moderate(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Message struct{ Data struct{ Text string } }
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || c.hook.Verify(body, r.Header) != nil {
		http.Error(w, "the signature is wrong", http.StatusUnauthorized)
		return
	}
	answer := map[string]any{"refuse": map[string]string{"detail": "this chat takes text, and no advertisements for a casino"}}
	if text := &asked.Message.Data.Text; json.Unmarshal(body, &asked) == nil && *text != "" && !strings.Contains(strings.ToLower(*text), "casino") {
		answer = map[string]any{"message": map[string]any{"data": map[string]string{"text": *text}}}
	}
	_ = json.NewEncoder(w).Encode(answer)
}
