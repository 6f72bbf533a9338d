package report

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
)

// What the documents show of a search is what was measured.
func TestTheDocumentsShowTheSearchAsItWas(t *testing.T) {
	text, err := os.ReadFile("../results/search.json")
	require.NoError(t, err)
	var r loadtest.SearchResult
	require.NoError(t, json.Unmarshal(text, &r))

	var search, confirmed strings.Builder
	require.NoError(t, SearchTable(&search, r))
	table, _, _ := strings.Cut(search.String(), "\n\n") // without what was tried
	wantShown(t, "../README.md", table)

	last := r.Points[len(r.Points)-1]
	require.NoError(t, Table(&confirmed, *last.Result))
	wantShown(t, "../README.md", confirmed.String())
}

// wantShown requires that a document has an indented block with this output.
func wantShown(t *testing.T, document, output string) {
	t.Helper()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	var block strings.Builder
	for line := range strings.Lines(strings.TrimSpace(output) + "\n") {
		block.WriteString(strings.TrimRight("    "+line, " \n") + "\n")
	}
	require.True(t, strings.Contains(string(text), block.String()), "%s does not show\n%s", document, block.String())
}
