package hook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// What is asked is signed after Standard Webhooks
// (https://github.com/standard-webhooks/standard-webhooks, spec), with its symmetric
// scheme, v1: whoever knows the secret, and nobody else, can tell that the daemon
// asks, and when it did.

// leastKey is in bytes (Standard Webhooks, "Signature scheme": 24 to 64 bytes).
const leastKey = 24

// keyPrefix begins a secret in base64.
const keyPrefix = "whsec_"

// KeyOf returns the key that a secret stands for: what whsec_ has behind it in base64
// or, without that, the secret's own bytes. The error says what it should be, and
// nothing of what it is.
func KeyOf(secret string) ([]byte, error) {
	key := []byte(secret)
	if text, ok := strings.CutPrefix(secret, keyPrefix); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, errors.New("what stands behind " + keyPrefix + " is no base64")
		}
	}
	if len(key) < leastKey {
		return nil, fmt.Errorf("it has %d bytes, and %d are needed", len(key), leastKey)
	}
	return key, nil
}

// newID returns an id that no other call has.
func newID() string { return "msg_" + rand.Text() }

// sign says in h who sends body, and when.
func sign(h http.Header, key []byte, id string, now time.Time, body []byte) {
	at := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	for _, part := range []string{id, ".", at, "."} {
		mac.Write([]byte(part))
	}
	mac.Write(body)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
