package config

import (
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"github.com/pubsubd/pubsubd/internal/auth"
)

// Bounds of the lists of authorisation.
const (
	maxKeyFiles     = 20
	maxPublicClaims = 20
)

// keyFiles is a list of files.
func keyFiles(to *[]string) *field {
	return texts(to, list[string]{
		kind: "files", form: fmt.Sprintf("at most %d files", maxKeyFiles), most: maxKeyFiles,
		allowed: fmt.Sprintf("files' paths, at most %d, separated by commas", maxKeyFiles),
		check:   func(path string, _ bool) error { return within(path != "" && !strings.Contains(path, ",")) },
	})
}

// jwksURL refuses plain HTTP from other machines, because whoever is on the way could change
// the keys, and a password, because logs show the setting.
func jwksURL(to *string) *field {
	return text(to, values[string]{
		kind: "url", form: "https url, or http url on this machine", allowed: "an https URL, or an http URL on this machine such as http://127.0.0.1:9000/jwks.json, without a user, a password or a fragment, or nothing",
		check: func(s string) error {
			u, err := url.Parse(s)
			isURL := err == nil && u.Hostname() != "" && u.User == nil && u.Fragment == ""
			return within(s == "" || isURL && (u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()+":0")))
		},
	})
}

// claim is what a claim must be.
func claim(to *string) *field {
	return text(to, values[string]{
		kind: "text", allowed: "a text without control characters, or nothing",
		check: func(s string) error { return within(!strings.ContainsFunc(s, unicode.IsControl)) },
	})
}

// claims is a list of names of claims.
func claims(to *[]string) *field {
	return texts(to, list[string]{
		kind: "claims", form: fmt.Sprintf("at most %d claims", maxPublicClaims), most: maxPublicClaims,
		allowed: fmt.Sprintf("names of claims, such as name, at most %d, separated by commas", maxPublicClaims),
		check: func(name string, _ bool) error {
			return within(name != "" && len(name) <= 64 && strings.ToValidUTF8(name, "") == name && !strings.ContainsFunc(name, func(r rune) bool { return r == ',' || unicode.IsControl(r) }))
		},
	})
}

// rights is a list of rights as JSON.
func rights(to *string) *field {
	f := text(to, values[string]{
		kind: "rights", allowed: `a JSON list such as [{"topics":["public.>"],"allow":["subscribe"]}], or nothing`,
		check: func(s string) error {
			if s == "" {
				return nil
			}
			_, err := auth.ParseRights([]byte(s), "x")
			return err
		},
	})
	f.isJSON = true
	return f
}

// checkAuth refuses files of keys that cannot be used, and settings of tokens without keys.
func checkAuth(m *mistakes, a auth.Config) {
	err := a.CheckKeys()
	m.check(err == nil, "auth.keys", "", "has a file that cannot be used: %v", err)
	err = a.CheckAPIKeys()
	m.check(err == nil, "auth.api_keys", "", "is %q, which cannot be used: %v", a.APIKeys, err)
	for _, s := range []struct{ key, text string }{
		{"auth.revocations", a.Revocations}, {"auth.issuer", a.Issuer}, {"auth.audience", a.Audience}, {"auth.type", a.Type}, {"auth.public_claims", strings.Join(a.PublicClaims, ",")},
	} {
		m.check(s.text == "" || a.Tokens(), s.key, "", "is %q, but no key verifies tokens: set auth.keys or auth.jwks, or omit it", s.text)
	}
}
