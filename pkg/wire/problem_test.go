package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
	listed := make(map[Code]int)
	for _, row := range tableOf(t, "PROTOCOL.md", "| status | codes |") {
		statuses, groups := strings.Split(row[0], ","), strings.Split(row[1], ";")
		require.Len(t, groups, len(statuses), "%s", row)
		for i, group := range groups {
			status, err := strconv.Atoi(strings.TrimSpace(statuses[i]))
			require.NoError(t, err)
			for _, match := range quoted.FindAllStringSubmatch(group, -1) {
				require.NotContains(t, listed, Code(match[1]), "listed twice")
				listed[Code(match[1])] = status
			}
		}
	}
	require.Equal(t, Codes(), listed)
}

// CLIENTS.md says for each code what a client does.
func TestTheGuideForClientsHasEveryCode(t *testing.T) {
	var listed []Code
	for _, row := range tableOf(t, "CLIENTS.md", "| code | the client |") {
		listed = append(listed, Code(strings.Trim(row[0], " `")))
		require.NotEmpty(t, strings.TrimSpace(row[1]), "%s", row)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(Codes())), listed)
}

func TestProtocolListsTheGapReasons(t *testing.T) {
	var listed []GapReason
	for _, row := range tableOf(t, "PROTOCOL.md", "| reason | |") {
		for _, match := range quoted.FindAllStringSubmatch(row[0], -1) {
			listed = append(listed, GapReason(match[1]))
		}
	}
	require.ElementsMatch(t, GapReasons(), listed)
}

// NewProblem panics on a code without a status.
func TestEveryCodeConstantHasAStatus(t *testing.T) {
	source, err := os.ReadFile("problem.go")
	require.NoError(t, err)
	var constants []Code
	for _, match := range regexp.MustCompile(`(?m)^\tCode\w+ +Code += "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		constants = append(constants, Code(match[1]))
	}
	require.Len(t, constants, len(Codes()))
	for _, code := range constants {
		p := NewProblem(code, "do this", "%d things", 2)
		require.GreaterOrEqual(t, p.Status, 400, "%s", code)
		require.Equal(t, http.StatusText(p.Status), p.Title)
		require.Equal(t, string(code)+": 2 things (do this)", p.Error())
	}
	require.PanicsWithValue(t, "BUG: problem code made_up is not listed", func() { _ = NewProblem("made_up", "", "") })
}

func TestCodesIsACopy(t *testing.T) {
	Codes()[CodeDraining] = 200
	require.Equal(t, 503, NewProblem(CodeDraining, "", "").Status)
}

func TestProblemsCompareByCode(t *testing.T) {
	err := fmt.Errorf("poll: %w", NewProblem(CodeStaleAck, "", "ack 3 is below 5"))
	require.ErrorIs(t, err, &Problem{Code: CodeStaleAck})
	require.NotErrorIs(t, err, &Problem{Code: CodePollReplaced})
	require.NotErrorIs(t, err, errors.New("stale_ack"))
	require.Equal(t, "draining", (&Problem{Code: CodeDraining}).Error())
}

func TestEndRoundTrip(t *testing.T) {
	p := NewProblem(CodeDraining, "reconnect <soon>", "the daemon is \"going\"\naway")
	p.RetryAfterMS = 1500
	p.Positions = []Position{someTopic}
	line := Content{End: p}.AppendJSON(nil)
	require.Equal(t, 1, strings.Count(string(line), "\n"))
	c, err := ParseLine(line)
	require.NoError(t, err)
	require.Equal(t, Content{End: p}, c)
	require.False(t, c.Counts())
	require.True(t, slices.Equal(line, Content{End: c.End}.AppendJSON(nil)))
}

func TestFaultCodes(t *testing.T) {
	for text, want := range map[string]Code{
		"a..b":     CodeInvalidTopic,
		"a..b@k:1": CodeInvalidTopic,
		"a@k3":     CodeInvalidPosition,
		"a@k3:01":  CodeInvalidPosition,
		"a@K3:1":   CodeInvalidPosition,
	} {
		_, err := ParseStart(text)
		require.Equal(t, want, codeOf(err), text)
		var starts []Start
		body, _ := json.Marshal([]string{text})
		require.Equal(t, want, codeOf(json.Unmarshal(body, &starts)), "%s in JSON", text)
	}
	require.Empty(t, codeOf(errors.New("else")))
	require.Empty(t, codeOf(nil))
}

// A request may be large. Its error must be short.
func TestAnErrorQuotesTheBeginningOfItsInput(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, text := range []string{
		long, long + "@", long + "@k3:1", "a@" + long, "a@" + long + ":1", "a@k3:" + long, "a@k3:" + strings.Repeat("1", 1<<20),
		"a" + strings.Repeat(".", 200), strings.Repeat("a.", 15) + long + "*", strings.Repeat("a", 200) + ".>.b", strings.Repeat("ä", 100),
	} {
		_, err := ParseStart(text)
		require.Error(t, err)
		require.NotEmpty(t, codeOf(err))
		require.Less(t, len(err.Error()), 500, "%.100s", err)
		_, err = ParsePosition(text)
		require.Error(t, err)
		require.Less(t, len(err.Error()), 500, "%.100s", err)
	}
	_, err := ParseStart("a@" + long)
	require.ErrorContains(t, err, `position "a@`+long[:62]+`…" has no offset`)
	_, err = ParseRate(long)
	require.Less(t, len(err.Error()), 300)
}

func TestAnErrorQuotesWholeCharacters(t *testing.T) {
	require.Equal(t, `"x`+strings.Repeat("ä", 31)+`…"`, Quote("x"+strings.Repeat("ä", 100)))
	require.Equal(t, `"xxx`+strings.Repeat("🙂", 15)+`…"`, Quote([]byte("xxx"+strings.Repeat("🙂", 100))))
	require.ErrorContains(t, CheckClient("café"), "holds 'é'")
	require.Len(t, Quote(strings.Repeat("\x80", 100)), len(`"`)+60*len(`\x80`)+len(`…"`), "these are no characters")
}

// codeOf returns the code of a fault, and "" for any other error.
func codeOf(err error) Code {
	if f, ok := errors.AsType[*fault](err); ok {
		return f.Code()
	}
	return ""
}
