package main

import (
	"crypto/hmac"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"io"
	"text/template"
)

//go:embed nchan.conf
var nchanConf string

//go:embed centrifugo.json
var centrifugoJSON string

var (
	nchanTemplate      = template.Must(template.New("nchan.conf").Parse(nchanConf))
	centrifugoTemplate = template.Must(template.New("centrifugo.json").Parse(centrifugoJSON))
)

// nchanSettings fill nchan.conf.
type nchanSettings struct {
	Module      string // file of the dynamic module; empty if nginx has it built in
	Port        int
	Connections int // below the open files of the process
}

func (s nchanSettings) write(w io.Writer) error { return nchanTemplate.Execute(w, s) }

// centrifugoSettings fill centrifugo.json.
type centrifugoSettings struct {
	Port   int
	APIKey string
}

func (s centrifugoSettings) write(w io.Writer) error { return centrifugoTemplate.Execute(w, s) }

// mercureToken returns a JSON Web Token, signed with the key, whose bearer may
// publish to every topic.
func mercureToken(key string) string {
	part := base64.RawURLEncoding.EncodeToString
	signed := part([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + part([]byte(`{"mercure":{"publish":["*"]}}`))
	mac := hmac.New(sha256.New, []byte(key))
	_, _ = fmt.Fprint(mac, signed) // a hash does not fail
	return signed + "." + part(mac.Sum(nil))
}
