package auth

import (
	"encoding/base64"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Bounds of tokens.
const (
	maxTokenBytes   = 8 << 10
	maxSubjectBytes = 128 // also of other principals
	maxIDBytes      = 128 // of jti
	maxPublicBytes  = 256 // of all public claims together

	// maxSkew is how far the clock of a token's issuer may be ahead of ours.
	maxSkew = 10 * time.Second

	// maxTries bounds the keys that one token is checked with, and so what an invalid token
	// costs. Only a token without a key id needs more than one.
	maxTries = 4
)

// A reason is why credentials were refused, as metrics label it.
type reason string

// The reasons.
const (
	malformed    reason = "malformed"     // not a signed token, or one with unsafe headers
	wrongKey     reason = "key"           // no key has the token's id, or its algorithm
	badSignature reason = "signature"     // the key did not sign the token
	wrongType    reason = "type"          // typ
	wrongIssuer  reason = "issuer"        // iss, or aud
	badClaims    reason = "claims"        // a claim is missing or not valid
	notYetValid  reason = "not_yet_valid" // nbf, or iat
	expired      reason = "expired"
	revoked      reason = "revoked"
	unknownKey   reason = "api_key"     // the API key is not known
	wrongScheme  reason = "scheme"      // Authorization has another scheme than Bearer
	several      reason = "several"     // more than one credential
	unavailable  reason = "unavailable" // the keys of auth.jwks are not here yet
)

func reasons() []reason {
	return []reason{malformed, wrongKey, badSignature, wrongType, wrongIssuer, badClaims, notYetValid, expired, revoked, unknownKey, wrongScheme, several, unavailable}
}

// A refusal is the error of credentials that are not valid. Its texts contain no part of the
// credentials.
type refusal struct {
	reason reason
	*wire.Problem
}

// newTokenRemedy is the remedy where only another token helps.
const newTokenRemedy = "get a new token"

func refuse(why reason, remedy, detail string, args ...any) *refusal {
	code := wire.CodeUnauthorized
	switch why {
	case expired:
		code = wire.CodeTokenExpired
	case several:
		code = wire.CodeInvalidRequest
	case unavailable:
		code = wire.CodeOverloaded
	}
	return &refusal{why, problem.New(code, remedy, detail, args...)}
}

// A header is what is read of a token's header. jku, jwk, x5u and x5c are ignored: a token
// does not choose the key that verifies it.
type header struct{ algorithm, key, kind string }

// tokenRemedy is the remedy for texts that are not tokens.
const tokenRemedy = "send a signed JWT: three parts of base64url with dots between them"

// partsOf returns the three parts of a token. Event loops call it for texts of anybody, so it costs
// little: it decodes at most maxTokenBytes.
func partsOf(token string) (parts []string, _ error) {
	if len(token) > maxTokenBytes {
		return nil, refuse(malformed, "issue tokens with fewer claims", "a token must have at most %d bytes; got %d", maxTokenBytes, len(token))
	}
	switch n := strings.Count(token, ".") + 1; n {
	case 3:
		parts = strings.Split(token, ".")
	case 5:
		return nil, refuse(malformed, tokenRemedy, "the token is encrypted (JWE), which is not supported")
	default:
		return nil, refuse(malformed, tokenRemedy, "the token has %d parts; a JWT has three", n)
	}
	for _, part := range parts {
		if _, err := decode(part); err != nil || strings.ContainsAny(part, "\r\n") {
			return nil, refuse(malformed, tokenRemedy, "a part of the token is not base64url without padding")
		}
	}
	return parts, nil
}

// headerOf reads the header of a token.
func headerOf(token string) (h header, _ error) {
	parts, err := partsOf(token)
	if err != nil {
		return h, err
	}
	text, _ := decode(parts[0])
	m, ok := parseMembers(text)
	if !ok {
		return h, refuse(malformed, tokenRemedy, "the token's header is not a JSON object in UTF-8 in which each member appears once")
	}
	var isText [4]bool
	var content string
	h.algorithm, isText[0] = m.text("alg")
	h.key, isText[1] = m.text("kid")
	h.kind, isText[2] = m.text("typ")
	content, isText[3] = m.text("cty")
	switch {
	case isText != [4]bool{true, true, true, true}:
		return h, refuse(malformed, newTokenRemedy, "alg, kid, typ or cty in the token's header is not a string")
	case m["crit"] != nil || m["b64"] != nil:
		// RFC 7515, section 4.1.11: a critical extension that is not understood makes the
		// token invalid. We understand none.
		return h, refuse(malformed, "issue tokens without crit and b64", "the token's header has crit or b64, which are not supported")
	case content != "":
		// RFC 7519, section 5.2: cty says that the token is nested.
		return h, refuse(malformed, "issue tokens without cty", "the token's header has cty: nested tokens are not supported")
	case h.algorithm == "" || strings.EqualFold(h.algorithm, "none"):
		return h, refuse(malformed, "sign the token", "the token is not signed")
	}
	return h, nil
}

func decode(part string) ([]byte, error) { return base64.RawURLEncoding.Strict().DecodeString(part) }

// verify returns the grant of a token that one of the keys signed. The error is a *refusal.
func (c Config) verify(token string, keys []key, now time.Time) (*Grant, error) {
	h, err := headerOf(token)
	// RFC 7515, section 4.1.9: a prefix application/ and the case do not matter.
	short := func(kind string) string { return strings.TrimPrefix(strings.ToLower(kind), "application/") }
	switch {
	case err != nil:
		return nil, err
	case c.Type != "" && short(h.kind) != short(c.Type):
		return nil, refuse(wrongType, newTokenRemedy, "typ in the token's header differs from auth.type")
	}
	payload, by, err := h.verifySignature(token, keys)
	if err != nil {
		return nil, err
	}
	m, ok := parseMembers(payload)
	if !ok {
		return nil, refuse(badClaims, newTokenRemedy, "the token's claims are not a JSON object in UTF-8 in which each member appears once")
	}
	g, err := c.grantOf(m, now)
	if err == nil {
		g.Key, g.by = by.print, by.whole
	}
	return g, err
}

// verifySignature returns the payload of a token that one of the keys signed, and which.
func (h header) verifySignature(token string, keys []key) (payload []byte, by key, _ error) {
	found, known := candidates(keys, h.algorithm, h.key)
	switch {
	case len(found) == 0 && known:
		return nil, by, refuse(wrongKey, "sign with an algorithm of the daemon's keys", "the daemon's keys for this token use another algorithm")
	case len(found) == 0:
		return nil, by, refuse(wrongKey, "sign with a key that the daemon has, or add its public key to auth.keys", "the daemon has no key with the token's key id")
	case len(found) > maxTries:
		return nil, by, refuse(wrongKey, "issue tokens with kid", "the token has no key id, and more than %d keys may have signed it", maxTries)
	}
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{found[0].algorithm})
	if err != nil {
		return nil, by, refuse(malformed, tokenRemedy, "the token's header is not valid")
	}
	for _, k := range found {
		if payload, err := signed.Verify(k.material); err == nil {
			return payload, k, nil
		}
	}
	if known {
		return nil, by, refuse(badSignature, "sign with a key that the daemon has, or add its public key to auth.keys", "the token's signature is not valid")
	}
	return nil, by, refuse(wrongKey, "sign with a key that the daemon has, or add its public key to auth.keys", "the daemon has no key with the token's key id, and no key without an id signed it")
}

// grantOf checks the claims of a token whose signature is valid. It checks the expiry last:
// a new token helps if only that is wrong.
func (c Config) grantOf(m members, now time.Time) (*Grant, error) {
	if err := c.checkOrigin(m); err != nil {
		return nil, err
	}
	g := &Grant{}
	var isText, isText2 bool
	g.Subject, isText = m.text("sub")
	g.TokenID, isText2 = m.text("jti")
	switch {
	case !isText || !isSubject(g.Subject):
		return nil, refuse(badClaims, "issue tokens with the user's name as sub", "sub in the token must be a string of 1 to %d bytes without control characters", maxSubjectBytes)
	case !isText2 || len(g.TokenID) > maxIDBytes:
		return nil, refuse(badClaims, "shorten jti", "jti in the token must be a string of at most %d bytes", maxIDBytes)
	}
	notBefore, err := c.setTimes(g, m)
	if err != nil {
		return nil, err
	}
	if claim := m["pubsub"]; claim != nil {
		if g.Rights, err = ParseRights(claim, g.Subject); err != nil {
			return nil, refuse(badClaims, "run `pubsubd token inspect` on the token", "pubsub in the token is not a valid list of rights")
		}
	}
	if g.Claims, err = c.publicClaims(m); err != nil {
		return nil, err
	}
	switch {
	case g.Issued.After(now.Add(maxSkew)):
		return nil, refuse(notYetValid, "synchronize the clocks of the issuer and the daemon", "the token was issued %v in the future (iat)", g.Issued.Sub(now).Round(time.Second))
	case notBefore.After(now.Add(maxSkew)):
		return nil, refuse(notYetValid, "retry when the token is valid", "the token becomes valid in %v (nbf)", notBefore.Sub(now).Round(time.Second))
	}
	return g, checkExpiry(g, now)
}

// checkOrigin checks iss and aud. A token for an audience is refused if auth.audience is not
// set: RFC 7519, section 4.1.3, forbids to accept a token that is meant for another service.
func (c Config) checkOrigin(m members) error {
	issuer, isText := m.text("iss")
	if c.Issuer != "" && (!isText || issuer != c.Issuer) {
		return refuse(wrongIssuer, newTokenRemedy, "the token's issuer (iss) differs from auth.issuer")
	}
	value, given := m["aud"]
	var audiences []string
	if given && json.Unmarshal(value, &audiences) != nil {
		var one string
		if json.Unmarshal(value, &one) != nil {
			return refuse(badClaims, newTokenRemedy, "aud in the token is neither a string nor a list of strings")
		}
		audiences = []string{one}
	}
	switch {
	case c.Audience == "" && given:
		return refuse(wrongIssuer, "set auth.audience, or issue tokens without aud", "the token is for an audience (aud), and auth.audience is not set")
	case c.Audience != "" && !slices.Contains(audiences, c.Audience):
		return refuse(wrongIssuer, newTokenRemedy, "the token's audience (aud) differs from auth.audience")
	}
	return nil
}

// isSubject reports whether s can name a principal.
func isSubject(s string) bool {
	return s != "" && len(s) <= maxSubjectBytes && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// setTimes sets the times of g, and returns nbf.
func (c Config) setTimes(g *Grant, m members) (notBefore time.Time, _ error) {
	for _, claim := range []struct {
		name     string
		to       *time.Time
		optional bool
	}{{"exp", &g.Expires, false}, {"iat", &g.Issued, false}, {"nbf", &notBefore, true}} {
		value, given := m[claim.name]
		seconds, err := strconv.ParseFloat(string(value), 64)
		switch {
		case !given && claim.optional:
		case !given:
			return notBefore, refuse(badClaims, "issue tokens with exp and iat", "%s is missing in the token", claim.name)
		case err != nil || !(seconds >= 0 && seconds <= latest): // or it is NaN
			return notBefore, refuse(badClaims, newTokenRemedy, "%s in the token is not a number of seconds since 1970", claim.name)
		default: // RFC 7519, section 2: a NumericDate may have a fraction
			whole, fraction := math.Modf(seconds)
			*claim.to = time.Unix(int64(whole), int64(fraction*1e9))
		}
	}
	switch age := g.Expires.Sub(g.Issued); {
	case age <= 0:
		return notBefore, refuse(badClaims, newTokenRemedy, "the token expires before it was issued (exp, iat)")
	case age > c.TokenMaxAge:
		return notBefore, refuse(badClaims, "issue tokens that expire earlier, or raise auth.token_max_age", "the token is valid for %v (exp, iat), more than auth.token_max_age: %v", age.Round(time.Second), c.TokenMaxAge)
	}
	return notBefore, nil
}

// latest is the latest time in a token: the end of the year 9999.
const latest = 253402300799

// checkExpiry returns a refusal if the grant has expired.
func checkExpiry(g *Grant, now time.Time) error {
	if g.HasExpired(now) {
		return refuse(expired, newTokenRemedy, "the token expired %v ago", now.Sub(g.Expires).Truncate(time.Second))
	}
	return nil
}

// publicClaims returns the public claims of a token as a compact JSON object, in the order of
// the setting, or nil if the token has none.
func (c Config) publicClaims(m members) ([]byte, error) {
	var object []byte
	for _, name := range c.PublicClaims {
		value, given := m[name]
		if !given {
			continue
		}
		compact, err := wire.CompactJSON(value)
		if err != nil {
			return nil, refuse(badClaims, newTokenRemedy, "a public claim of the token is nested too deep")
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			panic("BUG: the name of a public claim is not valid UTF-8: " + err.Error())
		}
		object = append(append(append(append(object, ','), quoted...), ':'), compact...)
	}
	switch {
	case object == nil:
		return nil, nil
	case len(object)+1 > maxPublicBytes:
		return nil, refuse(badClaims, "shorten the claims that auth.public_claims names", "a token's public claims must have at most %d bytes; got %d", maxPublicBytes, len(object)+1)
	}
	object[0] = '{'
	return append(object, '}'), nil
}
