package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProblemsCompareByCode(t *testing.T) {
	err := fmt.Errorf("poll: %w", &Problem{Code: CodeStaleAck, Detail: "ack 3 is below 5"})
	require.ErrorIs(t, err, &Problem{Code: CodeStaleAck})
	require.NotErrorIs(t, err, &Problem{Code: CodePollReplaced})
	require.NotErrorIs(t, err, errors.New("stale_ack"))
	require.Equal(t, "draining", (&Problem{Code: CodeDraining}).Error())
}

func TestEndRoundTrip(t *testing.T) {
	p := &Problem{Title: "Service Unavailable", Status: 503, Code: CodeDraining, Detail: "the daemon is \"going\"\naway", Remedy: "reconnect <soon>"}
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
