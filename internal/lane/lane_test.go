package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A reload changes only how long the lane waits for a client to read.
func TestReloadChangesOnlyTheWriteTimeout(t *testing.T) {
	l := New(Config{Metrics: metrics.New("test"), Origins: cors.New(nil), Idle: time.Minute, WriteTimeout: 30 * time.Second})
	defer l.Close()
	for _, timeout := range []time.Duration{30 * time.Second, 7 * time.Second} {
		l.Reload(timeout)
		for what := range l.patience {
			want := time.Minute
			switch waitKind(what) {
			case waitSpace:
				want = timeout
			case waitRest:
				want = restTimeout
			}
			require.EqualValues(t, want/time.Second, l.patience[what].Load())
		}
	}
}
