//go:build !race

package frame

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Members reuse memory. (Under the race detector pools drop items, so make check runs this
// without it.)
func TestAMemberAllocatesNothing(t *testing.T) {
	frames := []*Frame{textFrame(chatter(2000), nil), textFrame("short", nil), textFrame(chatter(3000), nil)}
	lead := []byte(someLead)
	require.Less(t, testing.AllocsPerRun(200, func() { TakeGzipMember(NDJSON, 1<<10, lead, frames).Release() }), 1.0)
}
