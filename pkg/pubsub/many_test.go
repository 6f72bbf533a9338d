package pubsub

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestPublishMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		results, err := c.PublishMany(t.Context(), []Publication{
			{Topic: "a", Body: []byte(`{"n": 1.50, "s": "<é>"}`), Options: []PublishOption{WithKey("k"), WithClient("c"), WithIdempotencyKey("one")}},
			{Topic: "refused", Body: []byte("1")},
			{Topic: "a", Type: "text/plain", Body: []byte("<hé>\u2028")},
			{Topic: "a", Type: "image/png", Body: []byte{0, 255}},
			{Topic: "b", Type: "image/png"},
			{Topic: "a", Type: jsonType, Body: []byte("null"), Options: []PublishOption{WithTTL(time.Minute)}},
		})
		require.NoError(t, err)
		require.Len(t, results, 6)
		require.Equal(t, "a@k3:1", results[0].Position.String())
		require.ErrorIs(t, results[1].Problem, &wire.Problem{Code: wire.CodeForbidden})
		require.Nil(t, results[1].Published)
		require.Equal(t, "b@k3:1", results[4].Position.String())
		require.Nil(t, results[4].Problem)

		held := f.topics["a"].messages
		require.Len(t, held, 4)
		require.Equal(t, `{"n":1.50,"s":"<é>"}`, string(held[0].Data))
		require.Equal(t, []string{"k", "c", "one"}, []string{held[0].Key, held[0].Client, held[0].ID})
		require.Equal(t, "<hé>\u2028", string(held[1].Data))
		require.Equal(t, []byte{0, 255}, held[2].Data)
		require.Equal(t, "null", string(held[3].Data))
		require.Empty(t, f.topics["b"].messages[0].Data)
	})
}

func TestPublishManyRefusesWhatCannotWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		for want, wrong := range map[string]Publication{
			"empty segment":   {Topic: "a..b", Body: []byte("1")},
			"not JSON":        {Topic: "a", Body: []byte("{")},
			"whole seconds":   {Topic: "a", Body: []byte("1"), Options: []PublishOption{WithTTL(time.Millisecond)}},
			"client's id":     {Topic: "a", Body: []byte("1"), Options: []PublishOption{WithClient("")}},
			"idempotency key": {Topic: "a", Body: []byte("1"), Options: []PublishOption{WithIdempotencyKey("")}},
		} {
			_, err := c.PublishMany(t.Context(), []Publication{{Topic: "a", Body: []byte("1")}, wrong})
			require.ErrorContains(t, err, "publish 2 messages: the one at 1, to ")
			require.ErrorContains(t, err, want)
		}
		require.Empty(t, f.topics)
		results, err := c.PublishMany(t.Context(), nil)
		require.NoError(t, err)
		require.Empty(t, results)
	})
}

// Many are sent again if the answer is lost and that is safe for every one of them.
func TestPublishManyIsRepeatedIfEveryMessageHasAKey(t *testing.T) {
	for keyed, want := range map[bool]int{true: 2, false: 1} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c := serveFake(t, f)
			calls := 0
			f.script = func(_ http.ResponseWriter, r *http.Request) bool {
				if calls++; calls == 2 {
					return false
				}
				f.serveMany(discard{http.Header{}}, r)
				panic(http.ErrAbortHandler)
			}
			messages := []Publication{
				{Topic: "a", Body: []byte("1"), Options: []PublishOption{WithIdempotencyKey("1")}},
				{Topic: "a", Body: []byte("2")},
			}
			if keyed {
				messages[1].Options = []PublishOption{WithIdempotencyKey("2")}
			}
			_, err := c.PublishMany(t.Context(), messages)
			require.Equal(t, keyed, err == nil, "%v", err)
			require.Equal(t, want, calls)
			require.Len(t, f.topics["a"].messages, 2)
		})
	}
}

func TestPublishManyTriesAgainWhenTheDaemonSaysLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		calls := 0
		f.script = func(w http.ResponseWriter, r *http.Request) bool {
			if calls++; calls == 1 {
				later(wire.CodeDraining, 700)(w, r)
			}
			return calls == 1
		}
		results, err := c.PublishMany(t.Context(), []Publication{{Topic: "a", Body: []byte("1")}})
		require.NoError(t, err)
		require.Len(t, results, 1)
	})
}

// An answer that does not say what became of each message says nothing.
func TestPublishManyWantsAResultForEach(t *testing.T) {
	for _, answer := range []string{`[]`, `[{},{}]`, `[{"position":"a@k3:1","time":1}]`, `{}`, `[{"position":"a@k3:1"},{"position":"a@k3:1","problem":{"code":"x"}}]`, `[{"position":"a@k3:1"},{"position":"b@k3:1"}]`} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c := serveFake(t, f)
			answerPublish(f, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) })
			_, err := c.PublishMany(t.Context(), []Publication{{Topic: "a", Body: []byte("1")}, {Topic: "a", Body: []byte("2")}})
			require.ErrorAs(t, err, new(*UnexpectedAnswerError), answer)
		})
	}
}
