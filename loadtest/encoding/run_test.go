package encoding

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
)

func silent(string) {}

// Everyone's objects go to the server and come back in every encoding, and the
// table has all of it.
func TestObjectsMakeRoundTripsInEveryEncoding(t *testing.T) {
	cfg := startFake(t, &fakeServer{})
	cfg.Duration = 100 * time.Millisecond // in which each has one at least
	r, err := Run(t.Context(), cfg, silent)
	require.NoError(t, err)
	require.Empty(t, r.Faults)
	require.Empty(t, r.Missing)
	require.Zero(t, r.ExitCode)
	require.Len(t, r.Rows, 6, "three encodings at two sizes")
	for _, row := range r.Rows {
		require.Len(t, row.Rounds, 2)
		require.Positive(t, row.TripsS.Mean)
		require.Positive(t, row.All.Client)
		require.Zero(t, row.All.Server, "nobody said which process it is")
		require.Greater(t, row.All.BytesOut/row.All.Trips, int64(200))
	}
	perTrip := func(objects int, encoding string) int64 {
		s := r.Row(objects, encoding).All
		return s.BytesIn / s.Trips
	}
	require.Greater(t, perTrip(30, JSON), 5*perTrip(3, JSON))
	require.Less(t, perTrip(30, CBOR), perTrip(30, JSON))
	require.Less(t, perTrip(30, GzipJSON), perTrip(30, JSON)/2)
	require.Len(t, r.Ratios, 4)
	require.Len(t, r.Shapes, 9)
	require.NotEmpty(t, r.Findings)
}

// A server of text alone is measured as far as it goes, and what is left out is
// said.
func TestWhatAServerDoesNotOfferIsLeftOut(t *testing.T) {
	r, err := Run(t.Context(), startFake(t, &fakeServer{textOnly: true}), silent)
	require.NoError(t, err)
	require.Len(t, r.Rows, 2)
	require.Len(t, r.Missing, 2)
	require.Equal(t, GzipJSON, r.Missing[0].Encoding)
	require.Contains(t, r.Missing[0].Reason, "not compressed")
	require.Equal(t, CBOR, r.Missing[1].Encoding)
	require.Contains(t, r.Missing[1].Reason, "not_acceptable")
}

// Each promise that a server can break is noticed in each encoding, whenever it
// does so, and fails the run.
func TestABrokenPromiseFailsTheRun(t *testing.T) {
	type lines = func(n uint64, payload []byte) []byte
	for kind, spoil := range map[string]func(n uint64, line lines, payload []byte) []byte{
		lost: func(n uint64, line lines, payload []byte) []byte { return line(n+1, payload) },
		duplicate: func(n uint64, line lines, payload []byte) []byte {
			return append(line(n, payload), line(n, payload)...)
		},
		disorder: func(n uint64, line lines, payload []byte) []byte { return line(n-2, payload) },
		changed: func(n uint64, line lines, payload []byte) []byte {
			return line(n, append([]byte(nil), spoiled(payload)...))
		},
	} {
		t.Run(kind, func(t *testing.T) {
			cfg := startFake(t, &fakeServer{spoil: func(n uint64, line lines, payload []byte) []byte {
				if n%7 == 0 {
					return spoil(n, line, payload)
				}
				return line(n, payload)
			}})
			r, err := Run(t.Context(), cfg, silent)
			require.NoError(t, err)
			require.Len(t, r.Faults, 1)
			require.Contains(t, r.Faults[0], kind+": ")
			require.Equal(t, loadtest.ExitMissed, r.ExitCode)
		})
	}
}

// A server that sends an older message's contents under the new one's position does
// not get away with it.
func TestStaleContentsAreNoticed(t *testing.T) {
	var mu sync.Mutex
	var stale []byte
	cfg := startFake(t, &fakeServer{textOnly: true, spoil: func(n uint64, line func(uint64, []byte) []byte, payload []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if n < 5 || stale == nil {
			stale = payload
		}
		return line(n, stale)
	}})
	cfg.Clients, cfg.Objects, cfg.Duration = 1, []int{3}, 500*time.Millisecond
	r, err := Run(t.Context(), cfg, silent)
	require.NoError(t, err)
	require.Len(t, r.Faults, 1)
	require.Contains(t, r.Faults[0], changed)
}

// spoiled has another city in it, of the same length.
func spoiled(payload []byte) []byte {
	other := append([]byte(nil), payload...)
	for i := range other {
		if other[i] == 'X' { // the first letter of most markets' codes
			other[i] = 'Y'
			return other
		}
	}
	return append(other[:len(other)-1], ",{}]"...)
}

func TestAnAnnouncedGapIsLoss(t *testing.T) {
	cfg := startFake(t, &fakeServer{spoil: func(uint64, func(uint64, []byte) []byte, []byte) []byte {
		return []byte(`{"gap":{"topic":"a","reason":"evicted","after":"a@k3:1","position":"a@k3:2"}}` + "\n")
	}})
	r, err := Run(t.Context(), cfg, silent)
	require.NoError(t, err)
	require.Contains(t, r.Faults[0], "evicted")
	require.Equal(t, loadtest.ExitMissed, r.ExitCode)
}

// Nobody waits for a test that was interrupted, whether it connects or measures. What
// it found until then is kept, and what broke off is not taken for loss.
func TestAnInterruptedRunReturnsWhatItHas(t *testing.T) {
	for name, after := range map[string]time.Duration{"connecting": 0, "in a load": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			cfg := startFake(t, &fakeServer{})
			cfg.Duration = time.Hour
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := Run(ctx, cfg, func(string) { // as the first round begins
				if after == 0 {
					cancel()
				}
				time.AfterFunc(after, cancel)
			})
			require.ErrorContains(t, err, "interrupted")
			require.NotNil(t, r)
			require.Equal(t, err.Error(), r.Error)
			require.Equal(t, loadtest.ExitFailed, r.ExitCode)
			require.Empty(t, r.Rows)
			require.Empty(t, r.Faults)
			require.Empty(t, r.Shapes)
		})
	}
}

func TestARunThatCannotBeginSaysWhy(t *testing.T) {
	cfg := Default()
	cfg.Target = "http://127.0.0.1:1"
	_, err := Run(t.Context(), cfg, silent)
	require.ErrorContains(t, err, "connection refused")
	cfg.Target, cfg.ServerPID = startFake(t, &fakeServer{}).Target, 1<<30
	_, err = Run(t.Context(), cfg, silent)
	require.ErrorContains(t, err, "--server-pid")
}

func TestWhoIsFirstInOneRoundIsLastInTheNext(t *testing.T) {
	all := codecs()
	require.Equal(t, JSON, turn(all, 0)[0].name)
	require.Equal(t, JSON, turn(all, 1)[2].name)
	require.Equal(t, JSON, turn(all, 3)[0].name)
	require.Empty(t, turn(nil, 3))
}
