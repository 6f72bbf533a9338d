package wire_test

import (
	"encoding/hex"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

var quoted = regexp.MustCompile("`([a-z_]+)`")

// tableOf returns the rows below a table's head in a document, as cells.
func tableOf(t *testing.T, document, head string) [][]string {
	t.Helper()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n"+head+"\n|---|---|\n")
	require.True(t, found, "%s has no table %q", document, head)
	var rows [][]string
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		rows = append(rows, strings.Split(strings.Trim(line, "|\n"), "|"))
	}
	return rows
}

// The table groups statuses as "401, 403 | `unauthorized`; `forbidden`".
func TestProtocolListsTheCodes(t *testing.T) {
	listed := make(map[wire.Code]int)
	for _, row := range tableOf(t, "PROTOCOL.md", "| status | codes |") {
		statuses, groups := strings.Split(row[0], ","), strings.Split(row[1], ";")
		require.Len(t, groups, len(statuses), "%s", row)
		for i, group := range groups {
			status, err := strconv.Atoi(strings.TrimSpace(statuses[i]))
			require.NoError(t, err)
			for _, match := range quoted.FindAllStringSubmatch(group, -1) {
				require.NotContains(t, listed, wire.Code(match[1]), "listed twice")
				listed[wire.Code(match[1])] = status
			}
		}
	}
	require.Equal(t, problem.Codes(), listed)
}

// CLIENTS.md says for each code what a client does.
func TestTheGuideForClientsHasEveryCode(t *testing.T) {
	var listed []wire.Code
	for _, row := range tableOf(t, "CLIENTS.md", "| code | the client |") {
		listed = append(listed, wire.Code(strings.Trim(row[0], " `")))
		require.NotEmpty(t, strings.TrimSpace(row[1]), "%s", row)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(problem.Codes())), listed)
}

func TestProtocolListsTheGapReasons(t *testing.T) {
	var listed []wire.GapReason
	for _, row := range tableOf(t, "PROTOCOL.md", "| reason | |") {
		for _, match := range quoted.FindAllStringSubmatch(row[0], -1) {
			listed = append(listed, wire.GapReason(match[1]))
		}
	}
	require.ElementsMatch(t, wire.GapReasons(), listed)
}

// PROTOCOL.md shows frames and payloads in JSON and in CBOR.
func TestProtocolShowsTheBytesOfCBOR(t *testing.T) {
	bare := func(cell string) string { return strings.Trim(cell, " `") }
	frames, payloads := tableOf(t, "PROTOCOL.md", "| NDJSON | CBOR |"), tableOf(t, "PROTOCOL.md", "| JSON | CBOR |")
	require.NotEmpty(t, frames)
	require.NotEmpty(t, payloads)
	for _, row := range frames {
		line := bare(row[0])
		if line == "an empty line" {
			line = ""
		}
		c, err := wire.ParseLine([]byte(line + "\n"))
		require.NoError(t, err, line)
		require.Equal(t, bare(row[1]), hex.EncodeToString(c.AppendCBOR(nil)), line)
	}
	for _, row := range payloads {
		text := bare(row[0])
		require.Equal(t, bare(row[1]), hex.EncodeToString(cbor.AppendFromJSON(nil, []byte(text))), text)
	}
}

// The table of contents of each document has every heading, and in the same order.
func TestTheTablesOfContentsAreComplete(t *testing.T) {
	for _, document := range []string{"PROTOCOL.md", "CLIENTS.md"} {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		_, contents, _ := strings.Cut(string(text), "\n\n- [")
		contents, rest, found := strings.Cut("["+contents, "\n\n")
		require.True(t, found, document)
		var listed, there []string
		for _, link := range regexp.MustCompile(`\]\(#([a-z-]+)\)`).FindAllStringSubmatch(contents, -1) {
			listed = append(listed, link[1])
		}
		for _, heading := range regexp.MustCompile(`(?m)^###? (.*)$`).FindAllStringSubmatch(rest, -1) {
			there = append(there, strings.ReplaceAll(strings.ToLower(heading[1]), " ", "-"))
		}
		require.Equal(t, there, listed, document)
	}
}
