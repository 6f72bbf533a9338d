package token

import (
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An Inspection explains a token to people: what it contains, and whether the daemon would
// accept it.
type Inspection struct {
	Says    [][2]string   // names and values; the values are the token's, and not verified
	Checked bool          // there were keys
	Refused *wire.Problem // why the daemon would refuse the token; nil: it would not, or not Checked
	Rights  auth.Rights   // that the token claims, whether it is valid or not
	Note    string        // why entries of the rights grant nothing; empty: they grant
}

// Inspect reads a token. If cfg has keys, it verifies the token as the daemon would. The keys
// of a JWKS are fetched once. The error is about the keys.
func Inspect(ctx context.Context, cfg auth.Config, token string, now time.Time) (i Inspection, err error) {
	i.describe(token, cfg.PublicClaims, now)
	if !cfg.Tokens() {
		return i, nil
	}
	keys, err := cfg.LoadKeys(ctx, now)
	if err != nil {
		return i, err
	}
	i.Checked = true
	_, i.Refused = keys.Verify(cfg, token, now)
	return i, nil
}

// members are those of a JSON object.
type members map[string]jsontext.Value

// plain returns a member as people read it: text without quotes, and anything else as JSON.
func (m members) plain(name string) string {
	var s string
	if json.Unmarshal(m[name], &s) == nil {
		return s
	}
	return string(m[name])
}

// describe reads what the token says, as far as it can be read.
func (i *Inspection) describe(token string, public []string, now time.Time) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		i.add("token", fmt.Sprintf("%d parts; a JWT has three", len(parts)))
		return
	}
	for n, part := range []string{"header", "claims"} {
		text, err := base64.RawURLEncoding.Strict().DecodeString(parts[n])
		var m members
		switch {
		case err != nil:
			i.add(part, "not base64url without padding")
		case json.Unmarshal(text, &m) != nil || m == nil:
			i.add(part, "not a JSON object in which each member appears once: "+string(text))
		case n == 0:
			for _, row := range [][2]string{{"algorithm", "alg"}, {"key id", "kid"}, {"type", "typ"}} {
				i.add(row[0], m.plain(row[1]))
			}
		default:
			i.describeClaims(m, public, now)
		}
	}
}

func (i *Inspection) add(name, value string) {
	if value != "" {
		i.Says = append(i.Says, [2]string{name, value})
	}
}

func (i *Inspection) describeClaims(m members, public []string, now time.Time) {
	for _, row := range [][2]string{{"subject", "sub"}, {"token id", "jti"}, {"issuer", "iss"}, {"audience", "aud"}} {
		i.add(row[0], m.plain(row[1]))
	}
	for _, row := range [][2]string{{"issued", "iat"}, {"not before", "nbf"}, {"expires", "exp"}} {
		if seconds, err := strconv.ParseFloat(string(m[row[1]]), 64); err == nil && math.Abs(seconds) < 1e12 {
			t := time.UnixMilli(int64(seconds * 1000))
			in := t.Sub(now).Round(time.Second)
			away := "in " + in.String()
			if t.Before(now) {
				away = (-in).String() + " ago"
			}
			i.add(row[0], t.UTC().Format("2006-01-02 15:04:05 UTC, ")+away)
		} else {
			i.add(row[0], m.plain(row[1]))
		}
	}
	for _, name := range public {
		i.add("public claim", name+": "+m.plain(name))
	}
	i.describeRights(m)
}

func (i *Inspection) describeRights(m members) {
	claim, given := m["pubsub"]
	if !given {
		i.add("rights", "none: the claim pubsub is missing")
		return
	}
	subject := m.plain("sub")
	rights, err := auth.ParseRights(claim, subject)
	if err != nil {
		i.add("rights", "not valid: "+err.Error())
		return
	}
	i.Rights = rights
	for _, entry := range rights.Entries() {
		i.add("right", entry)
	}
	if strings.Contains(string(claim), "$sub") && (wire.CheckTopic(subject) != nil || strings.Contains(subject, ".")) {
		i.Note = "Entries with $sub grant nothing, because the subject is not one segment of a topic."
	}
}
