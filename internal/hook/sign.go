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
	"unicode"
)

// Requests are signed as in Standard Webhooks
// (https://github.com/standard-webhooks/standard-webhooks, spec), with its symmetric
// scheme v1. An application that knows the secret can verify that the daemon sent the
// request, and when.

// minKey is the shortest key in bytes (Standard Webhooks, "Signature scheme": 24 to 64).
const minKey = 24

// keyPrefix begins a secret in base64.
const keyPrefix = "whsec_"

// KeyOf returns the key of a secret: the base64 after whsec_, or without that prefix the
// bytes of the secret. It refuses what is hardly meant, and hard to see: white space around the
// secret, and control characters. The error does not contain the secret.
func KeyOf(secret string) ([]byte, error) {
	if strings.TrimSpace(secret) != secret || strings.ContainsFunc(secret, unicode.IsControl) {
		return nil, errors.New("it has white space at an end, or a control character, such as a line break")
	}
	key := []byte(secret)
	if text, ok := strings.CutPrefix(secret, keyPrefix); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, errors.New("the text after " + keyPrefix + " is not base64")
		}
	}
	if len(key) < minKey {
		return nil, fmt.Errorf("the key has %d bytes; it needs at least %d", len(key), minKey)
	}
	return key, nil
}

// newID returns the unique id of a call.
func newID() string { return "msg_" + rand.Text() }

// sign sets the headers that prove who sends body, and when.
func sign(h http.Header, key []byte, id string, now time.Time, body []byte) {
	at := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, at, body) // never fails: hash.Hash
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
