package main

import (
	"strconv"
	"strings"
	"unicode"
)

// printable returns s with everything that a terminal would obey, or not show,
// written as in Go: what is published may come from anyone.
func printable(s string) string {
	if !strings.ContainsFunc(s, isUnprintable) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isUnprintable(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }
