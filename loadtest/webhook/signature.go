// Package webhook is the application's side of the daemon's hooks: the secret, and
// whether a call is signed with it. It is written by Standard Webhooks alone, as an
// application's author would, and knows nothing of the daemon's side.
package webhook

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

// SecretVariable has the secret that the hook's calls are signed with, in the
// environment: in arguments everybody on the machine could read it.
const SecretVariable = "PUBSUBD_HOOKS_PUBLISH_SECRET"

// secretPrefix says that the rest of a secret is base64 (Standard Webhooks).
const secretPrefix = "whsec_"

// NewSecret is one for a server that is started.
func NewSecret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}

// KeyOf returns the key of a secret, which is the text itself if it is not one of
// Standard Webhooks.
func KeyOf(secret string) []byte {
	if encoded, ok := strings.CutPrefix(secret, secretPrefix); ok {
		if key, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			return key
		}
	}
	return []byte(secret)
}

// mostSkew is how old or new a signature may be (Standard Webhooks: "some
// tolerance").
const mostSkew = 5 * time.Minute

// Check returns what is wrong with how a call of a webhook is signed
// (Standard Webhooks: `v1,` and base64 of the HMAC-SHA256 of id.timestamp.body).
func Check(h http.Header, body, key []byte, now time.Time) error {
	id, stamp := h.Get("webhook-id"), h.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if id == "" || err != nil {
		return fmt.Errorf("invalid webhook-id %q or webhook-timestamp %q", id, stamp)
	}
	if skew := now.Sub(time.Unix(seconds, 0)).Abs(); skew > mostSkew {
		return fmt.Errorf("its webhook-timestamp is off by %v", skew)
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, stamp, body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for got := range strings.FieldsSeq(h.Get("webhook-signature")) {
		if hmac.Equal([]byte(got), []byte(want)) {
			return nil
		}
	}
	return errors.New("no valid signature")
}
