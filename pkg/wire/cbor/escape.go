package cbor

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// appendUnescaped appends the JSON string that begins behind its opening quote, and
// returns how many bytes of text it takes with its closing quote. It is not ok if
// the string does not end, has an escape that is none, or half a surrogate pair, which
// is appended as UTF-8 would write it if it did.
func appendUnescaped(dst, text []byte) (s []byte, n int, ok bool) {
	whole := true
	for n < len(text) {
		special := bytes.IndexAny(text[n:], `"\`)
		if special < 0 {
			break
		}
		dst = append(dst, text[n:n+special]...)
		n += special
		if text[n] == '"' {
			return dst, n + 1, whole
		}
		r, taken := unescape(text[n:])
		if taken == 0 {
			return dst, n, false
		}
		n += taken
		if utf16.IsSurrogate(r) {
			whole = false
			dst = append(dst, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
			continue
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, len(text), false
}

// unescape returns the character that the escape at the beginning of text stands
// for, and the escape's length: 0 if it is none.
func unescape(text []byte) (r rune, n int) {
	if len(text) < 2 {
		return 0, 0
	}
	switch c := text[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		return unescapeUnicode(text)
	}
	return 0, 0
}

const unicodeEscape = len(`\u0000`)

func unescapeUnicode(text []byte) (r rune, n int) {
	high, ok := fourHex(text)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(high) {
		if low, ok := fourHex(text[unicodeEscape:]); ok {
			if pair := utf16.DecodeRune(high, low); pair != utf8.RuneError {
				return pair, 2 * unicodeEscape
			}
		}
	}
	return high, unicodeEscape
}

// fourHex reads \uXXXX.
func fourHex(text []byte) (r rune, ok bool) {
	if len(text) < unicodeEscape || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	for _, c := range text[2:unicodeEscape] {
		digit := hexDigit(c)
		if digit < 0 {
			return 0, false
		}
		r = r<<4 | digit
	}
	return r, true
}

func hexDigit(c byte) rune {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return rune(c|0x20-'a') + 10
	}
	return -1
}
