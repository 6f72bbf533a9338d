package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheOriginsOfACommandAreKept(t *testing.T) {
	const own = "http://127.0.0.1:8083"
	for command, want := range map[string]string{
		"pubsubd serve": "",
		"pubsubd serve --cors-origins=https://a.example":                         "--cors-origins=https://a.example," + own,
		"pubsubd serve --cors-origins https://a.example --lane=off":              "--cors-origins=https://a.example," + own,
		"pubsubd serve --cors-origins=http://a --cors-origins=http://b,http://c": "--cors-origins=http://b,http://c," + own,
		"pubsubd serve --cors-origins=":                                          "--cors-origins=" + own,
		"pubsubd serve --cors-origins=http://a," + own:                           "",
		"pubsubd serve --cors-origins=*":                                         "",
		"pubsubd serve --cors-origins=http://a --cors-origins=*":                 "",
		"pubsubd serve --cors-origins":                                           "",
	} {
		given := strings.Fields(command)
		if want != "" {
			command += " " + want
		}
		require.Equal(t, strings.Fields(command), withOrigin(given, own))
	}
}
