package transport

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// heard is what a Reader made of some bytes.
type heard struct {
	commands []string
	answers  string // one behind the other
	closed   bool
	code     wire.Code // of the error that ended it; empty: none
}

// hear has a Reader read b, of which it is given parts of so many bytes, and behind
// them what it did not take before, as connections do.
func hear(t testing.TB, r Reader, b []byte, part func() int) (h heard) {
	t.Helper()
	var have []byte
	for len(b) > 0 {
		n := min(part(), len(b))
		have, b = append(have, b[:n]...), b[n:]
		for len(have) > 0 {
			n, in, err := r.Read(have)
			if err != nil {
				problem := asProblem(err)
				require.NotNil(t, problem, "%v", err)
				h.code = problem.Code
				return h
			}
			require.GreaterOrEqual(t, len(have), n)
			have = have[n:]
			h.answers += string(in.Answer)
			if in.Command != nil {
				h.commands = append(h.commands, string(in.Command))
			}
			if h.closed = in.Closed; h.closed {
				return h
			}
			if n == 0 {
				require.Less(t, len(have), 64, "it waits for more than a head")
				break
			}
		}
	}
	return h
}

// whole, and each of these many bytes.
func whole() int    { return 1 << 30 }
func bytewise() int { return 1 }
func inChunks() int { return readBytes }

// wantsHeard has a new Reader read b whole, bytewise, cut in two everywhere, and in
// random parts: it must make the same of them.
func wantsHeard(t testing.TB, newReader func() Reader, b []byte, want heard) {
	t.Helper()
	require.Equal(t, want, hear(t, newReader(), b, whole))
	require.Equal(t, want, hear(t, newReader(), b, bytewise), "byte by byte")
	require.Equal(t, want, hear(t, newReader(), b, inChunks))
	for cut := 1; cut < min(len(b), 300); cut++ {
		parts := []int{cut, len(b)}
		require.Equal(t, want, hear(t, newReader(), b, func() int {
			n := parts[0]
			if len(parts) > 1 {
				parts = parts[1:]
			}
			return n
		}), "cut at %d", cut)
	}
	wantsHeardInParts(t, newReader, b, want, 1)
}

func wantsHeardInParts(t testing.TB, newReader func() Reader, b []byte, want heard, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, uint64(len(b))))
	require.Equal(t, want, hear(t, newReader(), b, func() int { return 1 + random.IntN(40) }), fmt.Sprintf("seed %d", seed))
}
