package pubsub

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const (
	historyOfThree = `{"position":"a@k3:7","time":1,"data":7}
{"gap":{"topic":"a","reason":"expired","after":"a@k3:7","position":"a@k3:8"}}
{"position":"a@k3:9","time":1,"data":9}
`
	doneAtSeven = `{"done":{"position":"a@k3:7","more":true}}
`
)

// answersHistory has the fake answer requests for a history, one after the other; the last
// answer repeats. It returns the queries.
func (f *fake) answersHistory(answers ...func(w http.ResponseWriter)) *[]string {
	var queries []string
	f.script = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || r.URL.Path != "/v1/topics/a/messages" {
			return false
		}
		answers[min(len(queries), len(answers)-1)](w)
		queries = append(queries, r.URL.RawQuery)
		return true
	}
	return &queries
}

func says(text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, text)
	}
}

func refuses(p *wire.Problem) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { refuse(w, p) }
}

func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		queries := f.answersHistory(says(historyOfThree + doneAtSeven))
		page, err := c.History(t.Context(), "a", wire.Position{}, 50)
		require.NoError(t, err)
		require.Len(t, page.Items, 3)
		require.Equal(t, "7", string(page.Items[0].Message.Data))
		require.Equal(t, wire.GapExpired, page.Items[1].Gap.Reason)
		require.Equal(t, "a@k3:7", page.Before.String())
		require.True(t, page.More)
		require.Equal(t, "a@k3:9", page.Next.String())

		*queries = nil
		f.answersHistory(says(`{"done":{"position":"a@k3:7","more":false}}` + "\n"))
		page, err = c.History(t.Context(), "a", page.Before, 20)
		require.NoError(t, err)
		require.Equal(t, HistoryPage{Before: wire.Position{Topic: "a", Epoch: "k3", Offset: 7}, Next: FromPosition(page.Before)}, page)
	})
}

func TestHistoryAsksForAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		queries := f.answersHistory(says(doneAtSeven))
		for _, before := range []wire.Position{{}, {Topic: "a", Epoch: "k3", Offset: 7}} {
			_, err := c.History(t.Context(), "a", before, 20)
			require.NoError(t, err)
		}
		require.Equal(t, []string{"newest=20", "before=a%40k3%3A7&limit=20"}, *queries)
	})
}

// A topic is created by its first message: until then its history is empty, and a
// subscription from there misses nothing.
func TestTheHistoryOfATopicThatDoesNotExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		f.answersHistory(refuses(problem.New(wire.CodeTopicUnknown, "publish", "topic a does not exist")))
		page, err := c.History(t.Context(), "a", wire.Position{}, 50)
		require.NoError(t, err)
		require.Equal(t, HistoryPage{Next: FromOldest("a")}, page)
	})
}

// A history without its done was cut, wherever that is.
func TestHistoryIsReadAgainWhenItWasCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		whole := historyOfThree + doneAtSeven
		queries := f.answersHistory(says(historyOfThree), says(whole[:len(whole)-1]), says(""),
			refuses(problem.New(wire.CodeOverloaded, "", "wait").Retry(2*time.Second)), says(whole))
		begun := time.Now()
		page, err := c.History(t.Context(), "a", wire.Position{}, 50)
		require.NoError(t, err)
		require.Len(t, page.Items, 3)
		require.Len(t, *queries, 5)
		require.GreaterOrEqual(t, time.Since(begun), 2*time.Second, "as long as the daemon asked")
	})
}

func TestHistoryFails(t *testing.T) {
	for name, c := range map[string]struct {
		topic  string
		before wire.Position
		limit  int
		answer func(http.ResponseWriter)
		says   string
		takes  time.Duration // at most
	}{
		"no topic":       {topic: "a..b", limit: 5, says: "empty segment"},
		"no limit":       {topic: "a", limit: 0, says: "limit must be 1 to 1000; got 0"},
		"large limit":    {topic: "a", limit: 1001, says: "limit must be 1 to 1000; got 1001"},
		"another topic":  {topic: "a", before: wire.Position{Topic: "b", Epoch: "k3", Offset: 1}, limit: 5, says: "b@k3:1 is a position of another topic"},
		"refused":        {topic: "a", limit: 5, answer: refuses(problem.New(wire.CodeForbidden, "", "no right to read")), says: "no right to read"},
		"another's":      {topic: "a", limit: 5, answer: says(`{"done":{"position":"b@k3:7","more":true}}` + "\n"), says: "is a proxy in between"},
		"no frames":      {topic: "a", limit: 5, answer: says("hello\n"), says: "is a proxy in between"},
		"a page":         {topic: "a", limit: 5, answer: func(w http.ResponseWriter) { http.NotFound(w, nil) }, says: "404 Not Found without pubsubd's error body"},
		"cut every time": {topic: "a", limit: 5, answer: says(historyOfThree), says: "cut off", takes: historyRetry},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				client := serveFake(t, f)
				if c.answer != nil {
					f.answersHistory(c.answer)
				}
				begun := time.Now()
				_, err := client.History(t.Context(), c.topic, c.before, c.limit)
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, "history of ")
				require.LessOrEqual(t, time.Since(begun), c.takes)
			})
		})
	}
}

func TestHistoryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		f.answersHistory(says(historyOfThree))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		_, err := c.History(ctx, "a", wire.Position{}, 50)
		require.Error(t, err)
		require.LessOrEqual(t, time.Since(begun), time.Second)
	})
}
