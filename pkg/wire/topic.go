package wire

import "strings"

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
