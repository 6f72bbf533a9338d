package app

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"strings"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A page of topics may end at a topic that the client may not see. Then the cursor, with
// which the client continues, is that topic's name encrypted.
// That does not make the name secret: see SECURITY.md.

// cursorMark begins an encrypted cursor, and no topic's name.
const cursorMark = "~"

// newCursors returns the cipher of cursors, with a new key.
func newCursors() cipher.AEAD {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		panic("BUG: the key has another length: " + err.Error())
	}
	cursors, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("BUG: the block has another size: " + err.Error())
	}
	return cursors
}

// sealed returns an encrypted cursor.
func (a *App) sealed(topic string) string {
	return cursorMark + base64.RawURLEncoding.EncodeToString(a.cursors.Seal(nil, nil, []byte(topic), nil))
}

// cursor returns the topic after which a page begins; empty: at the first one.
func (a *App) cursor(after string) (string, error) {
	text, isSealed := strings.CutPrefix(after, cursorMark)
	if !isSealed {
		return after, nil
	}
	encrypted, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		encrypted, err = a.cursors.Open(nil, nil, encrypted, nil)
	}
	if err != nil {
		return "", problem.New(wire.CodeInvalidRequest, "list the topics from the beginning: omit after",
			"after must be the value of next in a page that the daemon has sent since its last restart")
	}
	return string(encrypted), nil
}
