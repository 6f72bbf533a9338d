// Package pubsubjs holds the built modules of the JavaScript client, which the daemon
// serves. Their sources are in src; `make web` builds them.
package pubsubjs

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"sync"
)

//go:embed dist/*.js
var dist embed.FS

// A Module is a built ES module. It is immutable.
type Module struct {
	Text []byte
	Hash string // of Text: changes when Text does

	gzip func() []byte
}

// Gzip returns the text compressed. The first call compresses it.
func (m *Module) Gzip() []byte { return m.gzip() }

// Load returns a module by its name, such as "client.js". It panics if the module does not
// exist.
func Load(name string) *Module {
	text, err := dist.ReadFile("dist/" + name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	hash := sha256.Sum256(text)
	return &Module{Text: text, Hash: hex.EncodeToString(hash[:16]), gzip: sync.OnceValue(func() []byte { return compress(text) })}
}

func compress(text []byte) []byte {
	var to bytes.Buffer
	w, _ := gzip.NewWriterLevel(&to, gzip.BestCompression) // the level is valid
	_, _ = w.Write(text)                                   // a Buffer does not fail
	_ = w.Close()
	return to.Bytes()
}
