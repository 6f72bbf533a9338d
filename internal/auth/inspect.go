package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An Inspection explains a token to people: what it contains, and whether the daemon would
// accept it.
type Inspection struct {
	Says    [][2]string   // names and values; the values are the token's, and not verified
	Checked bool          // there were keys
	Refused *wire.Problem // why the daemon would refuse the token; nil: it would not, or not Checked
	Rights  Rights        // that the token claims, whether it is valid or not
	Note    string        // why entries of the rights grant nothing; empty: they grant
}

// Inspect reads a token. If cfg has keys, it verifies the token as the daemon would. The keys
// of a JWKS are fetched once. The error is about the keys.
func Inspect(ctx context.Context, cfg Config, token string, now time.Time) (i Inspection, err error) {
	i.describe(token, cfg.PublicClaims, now)
	if !cfg.Tokens() {
		return i, nil
	}
	var keys []key
	files, err := openKeyFiles(cfg.Keys, now)
	if err != nil {
		return i, err
	}
	for _, f := range files {
		keys = append(keys, f.keys...)
	}
	if cfg.JWKS != "" {
		text, err := newJWKS(cfg.JWKS, nil, nil, nil).get(ctx)
		if err != nil {
			return i, fmt.Errorf("auth.jwks: %w", err)
		}
		fetched, _, err := parseJWKs(text, publicKeyOfJWK)
		if err != nil {
			return i, fmt.Errorf("auth.jwks %w", err)
		}
		keys = append(keys, fetched...)
	}
	v := verifier{cfg.Issuer, cfg.Audience, cfg.Type, cfg.TokenMaxAge, cfg.PublicClaims}
	i.Checked = true
	if _, err := v.verify(token, keys, now); err != nil {
		i.Refused = problemOf(err)
	}
	return i, nil
}

// describe reads what the token says, as far as it can be read.
func (i *Inspection) describe(token string, public []string, now time.Time) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		i.add("token", fmt.Sprintf("%d parts; a JWT has three", len(parts)))
		return
	}
	for n, part := range []string{"header", "claims"} {
		text, err := decode(parts[n])
		m, ok := parseMembers(text)
		switch {
		case err != nil:
			i.add(part, "not base64url without padding")
		case !ok:
			i.add(part, "not a JSON object in which each member appears once: "+string(text))
		case n == 0:
			i.describeHeader(m)
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

func (i *Inspection) describeHeader(m members) {
	for _, row := range [][2]string{{"algorithm", "alg"}, {"key id", "kid"}, {"type", "typ"}} {
		i.add(row[0], m.plain(row[1]))
	}
}

// plain returns a member as people read it: text without quotes, and anything else as JSON.
func (m members) plain(name string) string {
	if s, ok := m.text(name); ok {
		return s
	}
	return string(m[name])
}

func (i *Inspection) describeClaims(m members, public []string, now time.Time) {
	for _, row := range [][2]string{{"subject", "sub"}, {"token id", "jti"}, {"issuer", "iss"}, {"audience", "aud"}} {
		i.add(row[0], m.plain(row[1]))
	}
	for _, row := range [][2]string{{"issued", "iat"}, {"not before", "nbf"}, {"expires", "exp"}} {
		if t, ok := timeOf(m[row[1]]); ok {
			i.add(row[0], fmt.Sprintf("%s, %s", t.UTC().Format("2006-01-02 15:04:05 UTC"), fromNow(t.Sub(now))))
		} else {
			i.add(row[0], m.plain(row[1]))
		}
	}
	for _, name := range public {
		i.add("public claim", name+": "+m.plain(name))
	}
	i.describeRights(m)
}

func fromNow(d time.Duration) string {
	if d < 0 {
		return (-d).Round(time.Second).String() + " ago"
	}
	return "in " + d.Round(time.Second).String()
}

func (i *Inspection) describeRights(m members) {
	claim, given := m["pubsub"]
	if !given {
		i.add("rights", "none: the claim pubsub is missing")
		return
	}
	subject := m.plain("sub")
	rights, err := ParseRights(claim, subject)
	if err != nil {
		i.add("rights", "not valid: "+err.Error())
		return
	}
	i.Rights = rights
	for _, e := range rights.entries {
		i.add("right", e.String())
	}
	if strings.Contains(string(claim), placeholder) && !isToken(subject) {
		i.Note = "Entries with $sub grant nothing, because the subject is not one token of a topic."
	}
}

// String returns "subscribe, publish on chat.>, news".
func (e entry) String() string {
	allow := make([]string, len(e.allow))
	for i, r := range e.allow {
		allow[i] = string(r)
	}
	return strings.Join(allow, ", ") + " on " + strings.Join(e.topics, ", ")
}

// Explain says why the rights include a right on a topic or pattern, or not. It names the entry
// that does, or the one that comes closest. The error is about the right or the name.
func (rs Rights) Explain(r Right, name string) (allowed bool, why string, err error) {
	if !slices.Contains(AllRights(), r) {
		return false, "", fmt.Errorf("%s is not a right; the rights are %v", wire.Quote(r), AllRights())
	}
	if err := wire.CheckPattern(name); err != nil {
		return false, "", err
	}
	asked := r
	r, name = needed(r, name)
	if r != asked {
		why = fmt.Sprintf("This topic needs the right %s on %q. ", r, name)
	}
	closest, most := "", -1
	for _, e := range rs.entries {
		for _, by := range e.topics {
			allows, covered := slices.Contains(e.allow, r), covers(by, name)
			near := 2 * sharedTokens(by, name)
			switch {
			case allows && covered:
				return true, why + fmt.Sprintf("The entry %q allows it, by the name %q.", e, by), nil
			case covered:
				near += 1000
			case allows:
				near++
			}
			if near > most {
				closest, most = e.misses(r, name, by, allows, covered), near
			}
		}
	}
	if most < 0 {
		closest = "No entry grants anything."
	}
	return false, why + closest, nil
}

// misses says what an entry lacks for a right on a name. by is the entry's name that comes
// closest.
func (e entry) misses(r Right, name, by string, allows, covered bool) string {
	lacks := fmt.Sprintf("%q does not include %q", by, name)
	switch {
	case covered:
		lacks = fmt.Sprintf("%q includes it, but the right %s is missing", by, r)
	case allows && wire.IsPattern(name):
		lacks += ", and one name must cover the whole pattern"
	case !allows:
		lacks += fmt.Sprintf(", and the right %s is missing", r)
	}
	return fmt.Sprintf("The entry %q comes closest: %s.", e, lacks)
}

// sharedTokens returns how many tokens two names have in common at their beginning. A wildcard
// is like any token.
func sharedTokens(by, name string) (n int) {
	a, b := strings.Split(by, "."), strings.Split(name, ".")
	for n < len(a) && n < len(b) && (a[n] == b[n] || a[n] == "*" || a[n] == ">") {
		n++
	}
	return n
}
