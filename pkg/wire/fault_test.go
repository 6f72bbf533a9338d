package wire

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCodeOf(t *testing.T) {
	for text, want := range map[string]Code{
		"a..b":     CodeInvalidTopic,
		"a..b@k:1": CodeInvalidTopic,
		"a@k3":     CodeInvalidPosition,
		"a@k3:01":  CodeInvalidPosition,
		"a@K3:1":   CodeInvalidPosition,
	} {
		_, err := ParseStart(text)
		require.Equal(t, want, CodeOf(err), text)
		var starts []Start
		body, _ := json.Marshal([]string{text})
		require.Equal(t, want, CodeOf(json.Unmarshal(body, &starts)), "%s in JSON", text)
	}
	require.Empty(t, CodeOf(errors.New("else")))
	require.Empty(t, CodeOf(nil))
}
