package observe

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A reader of a log. It reads nothing while it is stopped, and fails while it has ended.
type reader struct {
	stopped chan struct{} // has a token while it reads nothing

	mu    sync.Mutex // guards the fields below
	ended bool
	text  bytes.Buffer
}

func (r *reader) Write(text []byte) (int, error) {
	r.stopped <- struct{}{}
	defer r.goOn()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return 0, errors.New("broken pipe")
	}
	return r.text.Write(text)
}

func newReader() *reader { return &reader{stopped: make(chan struct{}, 1)} }

func (r *reader) stop() { r.stopped <- struct{}{} }

func (r *reader) goOn() { <-r.stopped }

func (r *reader) end(ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = ended
}

// lines returns what was read, and forgets it.
func (r *reader) lines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.text.String()) {
		var members map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &members))
		lines = append(lines, members)
	}
	r.text.Reset()
	return lines
}

func dropped(of *prometheus.CounterVec, level string) int {
	return int(testutil.ToFloat64(of.WithLabelValues(level)))
}

func TestALogWritesLinesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, m := newReader(), metrics.New("test")
		l := NewLog(to, "json", m.LogDropped)
		named := l.Named("part")
		for i := range 1000 {
			if i%2 == 0 {
				l.Sugar().Debugw("even", "n", i)
			} else {
				named.Sugar().Errorw("odd", "n", i)
			}
		}
		l.Close()
		lines := to.lines(t)
		require.Len(t, lines, 1000)
		for i, line := range lines {
			require.EqualValues(t, i, line["n"])
			require.Equal(t, []string{"debug", "error"}[i%2], line["level"])
		}
		require.Equal(t, "part", lines[1]["logger"])
		require.Zero(t, dropped(m.LogDropped, "debug"))
	})
}

// Nobody waits for a reader that has stopped. Information is dropped before errors, and the log
// says how much was dropped.
func TestALogDropsInformationFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, m := newReader(), metrics.New("test")
		l := NewLog(to, "json", m.LogDropped)
		to.stop()
		l.Info("first")
		synctest.Wait() // it is on its way to the reader
		const many = 3 * mostWaiting / 200
		for range many {
			l.Info(strings.Repeat("i", 200))
		}
		information := dropped(m.LogDropped, "info")
		require.Greater(t, information, many/2)
		require.Less(t, information, many)
		for range 100 {
			l.Error("e")
		}
		require.Zero(t, dropped(m.LogDropped, "error"), "there is room for errors")
		for range many {
			l.Error(strings.Repeat("e", 200))
		}
		errs := dropped(m.LogDropped, "error")
		require.Greater(t, errs, many/2)
		to.goOn()
		synctest.Wait()
		lines := to.lines(t)
		last := lines[len(lines)-1]
		require.Equal(t, "warn", last["level"])
		require.Contains(t, last["msg"], "dropped")
		require.EqualValues(t, information, last["info"])
		require.EqualValues(t, errs, last["error"])
		require.NotContains(t, last, "debug")
		require.Len(t, lines, 1+many-information+100+many-errs+1)

		l.Info("later")
		l.Close()
		lines = to.lines(t)
		require.Len(t, lines, 1, "it says so once")
		require.Equal(t, "later", lines[0]["msg"])
	})
}

func TestALogGoesOnAfterAFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, m := newReader(), metrics.New("test")
		l := NewLog(to, "json", m.LogDropped)
		to.end(true)
		for range 3 {
			l.Warn("lost")
			synctest.Wait()
		}
		require.Equal(t, 3, dropped(m.LogDropped, "warn"))
		to.end(false)
		l.Info("there")
		l.Close()
		lines := to.lines(t)
		require.Len(t, lines, 2)
		require.Equal(t, "there", lines[0]["msg"])
		require.EqualValues(t, 3, lines[1]["warn"])
	})
}

func TestTheEndWaitsASecondForTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newReader()
		l := NewLog(to, "json", metrics.New("test").LogDropped)
		to.stop()
		l.Info("slow")
		begun := time.Now()
		time.AfterFunc(closeWithin/2, to.goOn)
		l.Close()
		require.Equal(t, closeWithin/2, time.Since(begun))
		require.Len(t, to.lines(t), 1)

		l = NewLog(to, "json", metrics.New("test").LogDropped)
		to.stop()
		l.Info("hung")
		begun = time.Now()
		l.Close()
		require.Equal(t, closeWithin, time.Since(begun))
		to.goOn()
	})
}

func TestALogForPeople(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text, in := io.Pipe()
		l := NewLog(in, "console", metrics.New("test").LogDropped)
		l.Warn("look")
		line := make([]byte, 100)
		n, err := text.Read(line)
		require.NoError(t, err)
		require.Contains(t, string(line[:n]), "\tWARN\tlook\n")
		l.Close()
	})
}
