package wire

import (
	"strings"
)

// Bounds of a topic's name.
const (
	MaxTopicBytes  = 255
	MaxTopicTokens = 16
)

// CheckTopic returns nil if name is a topic's name: dot-separated tokens of
// ASCII letters, digits, '-' and '_', at most MaxTopicTokens of them and
// MaxTopicBytes in all. Case counts. The error says what to change.
func CheckTopic(name string) error {
	switch {
	case name == "":
		return faultf(CodeInvalidTopic, "the topic is empty: name one, such as prices.acme")
	case len(name) > MaxTopicBytes:
		return faultf(CodeInvalidTopic, "the topic has %d bytes: at most %d are allowed", len(name), MaxTopicBytes)
	case strings.Count(name, ".") >= MaxTopicTokens:
		return faultf(CodeInvalidTopic, "the topic has more than %d tokens: join some", MaxTopicTokens)
	}
	tokenStart := 0
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '.' {
			if i == tokenStart {
				return emptyToken(name)
			}
			tokenStart = i + 1
			continue
		}
		if !isTokenByte(c) {
			return faultf(CodeInvalidTopic, "topic %q holds %q: only ASCII letters, digits, '-', '_' and dots between tokens are allowed", name, c)
		}
	}
	if tokenStart == len(name) {
		return emptyToken(name)
	}
	return nil
}

// ReservedTopic reports whether name belongs to the daemon: its first token
// begins with '_'. Clients may subscribe to such topics but not publish.
func ReservedTopic(name string) bool { return strings.HasPrefix(name, "_") }

func emptyToken(name string) error {
	return faultf(CodeInvalidTopic, "topic %q has an empty token: write something between the dots", name)
}

func isTokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// A pattern stands for topics: it is a topic's name in which '*' may stand for a
// token, and a last '>' for one or more tokens. No wildcard stands for a first
// token that begins with '_', which is the daemon's own.
const (
	anyToken = "*"
	anyRest  = ">"
)

// IsPattern reports whether s, a topic's name or a pattern, is a pattern.
func IsPattern(s string) bool { return strings.ContainsAny(s, anyToken+anyRest) }

// CheckPattern returns nil if s is a pattern or a topic's name, which stands for
// itself. The error says what to change.
func CheckPattern(s string) error {
	i := -1
	for token := range strings.SplitSeq(s, ".") {
		i++
		switch {
		case token == "" && s != "":
			return faultf(CodeInvalidTopic, "pattern %q has an empty token: write something between the dots", s)
		case token == anyToken:
		case token == anyRest && i == strings.Count(s, "."):
		case token == anyRest:
			return faultf(CodeInvalidTopic, "pattern %q goes on behind '>': it stands for all that follows, so it comes last", s)
		case IsPattern(token):
			return faultf(CodeInvalidTopic, "pattern %q has a wildcard within the token %q: '*' and '>' stand for whole tokens", s, token)
		}
	}
	// What is left has the bounds and the letters of a topic.
	return CheckTopic(wildcardsOut.Replace(s))
}

var wildcardsOut = strings.NewReplacer(anyToken, "x", anyRest, "x")

// Matches reports whether the pattern, which must be a good one, stands for the
// topic. A client may have it asked some 100,000 times by one request, so it goes over
// both once, and cuts nothing.
func Matches(pattern, topic string) bool {
	if ReservedTopic(topic) && (strings.HasPrefix(pattern, anyToken) || strings.HasPrefix(pattern, anyRest)) {
		return false
	}
	at := 0 // in the topic
	for i := range len(pattern) {
		switch c := pattern[i]; {
		case c == anyRest[0]: // wildcards are whole tokens
			return true
		case c == anyToken[0]:
			at += untilDot(topic[at:])
		case at == len(topic) || topic[at] != c:
			return false
		default:
			at++
		}
	}
	return at == len(topic)
}

// untilDot is the length of the first token.
func untilDot(s string) int {
	for i := range len(s) {
		if s[i] == '.' {
			return i
		}
	}
	return len(s)
}

// MoreSpecific reports whether x, a pattern, is to be preferred to y where both
// match: token by token from the first, a name comes before '*' and that before
// '>'. Of two different patterns that match the same topic, one always is.
func MoreSpecific(x, y string) bool {
	for {
		a, restOfX, moreX := strings.Cut(x, ".")
		b, restOfY, moreY := strings.Cut(y, ".")
		if rank(a) != rank(b) || !moreX || !moreY {
			return rank(a) > rank(b)
		}
		x, y = restOfX, restOfY
	}
}

// rank orders what may stand in a token's place.
func rank(token string) int {
	switch token {
	case anyRest:
		return 0
	case anyToken:
		return 1
	}
	return 2
}
