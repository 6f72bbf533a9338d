package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// A Position is the last message of a topic that a subscriber has received, written
// topic@epoch:offset. Offset 0 is before the first message of the epoch. A pattern also has
// a position: it counts the forgotten topics that match.
type Position struct {
	Topic  string
	Epoch  string // base 36, lower case; changes when numbering begins anew
	Offset uint64 // rises within an epoch, not necessarily by one
}

// MaxEpochBytes bounds an epoch; those of the daemon have twelve or thirteen bytes.
const MaxEpochBytes = 16

// MaxOffset bounds offsets and the ref of a command. It is the largest integer that every
// JSON reader keeps exactly (RFC 8259, section 6).
const MaxOffset = 1<<53 - 1

// String returns topic@epoch:offset.
func (p Position) String() string { return string(p.Append(nil)) }

// Append appends topic@epoch:offset to dst.
func (p Position) Append(dst []byte) []byte {
	dst = append(dst, p.Topic...)
	dst = append(dst, '@')
	dst = append(dst, p.Epoch...)
	dst = append(dst, ':')
	return strconv.AppendUint(dst, p.Offset, 10)
}

// MarshalText makes a position a JSON string.
func (p Position) MarshalText() ([]byte, error) { return p.Append(nil), nil }

// UnmarshalText reads topic@epoch:offset as ParsePosition does.
func (p *Position) UnmarshalText(text []byte) error {
	parsed, err := ParsePosition(string(text))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}

// ParsePosition reads topic@epoch:offset. An offset has no sign and no leading zero, and is
// at most MaxOffset.
func ParsePosition(s string) (Position, error) {
	topic, rest, ok := strings.Cut(s, "@")
	if !ok {
		return Position{}, faultf(CodeInvalidPosition, "position %s has no '@': write topic@epoch:offset", Quote(s))
	}
	if err := CheckPattern(topic); err != nil {
		return Position{}, fmt.Errorf("position %s: %w", Quote(s), err)
	}
	epoch, digits, ok := strings.Cut(rest, ":")
	if !ok {
		return Position{}, faultf(CodeInvalidPosition, "position %s has no offset: write topic@epoch:offset", Quote(s))
	}
	if !isEpoch(epoch) {
		return Position{}, faultf(CodeInvalidPosition, "position %s: the epoch is 1 to %d lower-case letters and digits", Quote(s), MaxEpochBytes)
	}
	offset, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case digits == "" || len(digits) > 1 && digits[0] == '0' || digits[0] == '+':
		return Position{}, faultf(CodeInvalidPosition, "position %s: offset must be a decimal number without sign or leading zeros; got %s", Quote(s), Quote(digits))
	case err != nil || offset > MaxOffset:
		return Position{}, faultf(CodeInvalidPosition, "position %s: offset must be a decimal number up to 2^53-1; got %s", Quote(s), Quote(digits))
	}
	return Position{Topic: topic, Epoch: epoch, Offset: offset}, nil
}

func isEpoch(s string) bool {
	return s != "" && len(s) <= MaxEpochBytes && strings.Trim(s, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}
