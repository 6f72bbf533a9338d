package problem

import (
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// New panics on a code without a status.
func TestEveryCodeConstantHasAStatus(t *testing.T) {
	source, err := os.ReadFile("../../pkg/wire/problem.go")
	require.NoError(t, err)
	var constants []wire.Code
	for _, match := range regexp.MustCompile(`(?m)^\tCode\w+ +Code += "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		constants = append(constants, wire.Code(match[1]))
	}
	require.Len(t, constants, len(Codes()))
	for _, code := range constants {
		p := New(code, "do this", "%d things", 2)
		require.GreaterOrEqual(t, p.Status, 400, "%s", code)
		require.Equal(t, http.StatusText(p.Status), p.Title)
		require.Equal(t, string(code)+": 2 things (do this)", p.Error())
	}
	require.PanicsWithValue(t, "BUG: problem code made_up is not listed", func() { _ = New("made_up", "", "") })
}

func TestCodesIsACopy(t *testing.T) {
	Codes()[wire.CodeDraining] = 200
	require.Equal(t, 503, New(wire.CodeDraining, "", "").Status)
}
