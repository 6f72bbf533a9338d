package child

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheTailKeepsTheLastLines(t *testing.T) {
	var nothing tail
	require.Contains(t, nothing.quote(), "wrote nothing")
	var long tail
	for range 3000 {
		_, err := long.Write([]byte("line\n"))
		require.NoError(t, err)
	}
	_, err := long.Write([]byte("the last\n"))
	require.NoError(t, err)
	require.Equal(t, 10, strings.Count(long.quote(), "\n  "))
	require.True(t, strings.HasSuffix(long.quote(), "the last"))
}

func TestAnAlarmIsHeard(t *testing.T) {
	var said tail
	_, _ = said.Write([]byte(`{"level":"warn","msg":"all is well"}` + "\n"))
	require.Empty(t, said.alarm())
	_, _ = said.Write([]byte("WARNING: DATA RACE\nWrite at 0x00c0\n"))
	require.Contains(t, said.alarm(), "Write at")
	_, _ = said.Write(make([]byte, 2*tailBytes))
	require.Len(t, said.kept, tailBytes)
}
