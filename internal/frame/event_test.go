package frame

import (
	"testing"
	"time"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/stretchr/testify/require"
)

func TestEventsOfAnEventSource(t *testing.T) {
	at := wire.Position{Topic: "a.b", Epoch: "k3", Offset: 18}
	message := New(&wire.Message{Position: at, Time: 1, Data: []byte(`[1,2]`)}, time.Now(), 0, nil)
	const data = `{"position":"a.b@k3:18","time":1,"data":[1,2]}`
	require.Equal(t, "data: "+data+"\nid: a.b@k3:18\n\n", string(message.Bytes(EventStream)))
	require.Equal(t, "data: "+data+"\nid: ~s:7\n\n", string(message.AppendEvent(nil, []byte("~s:7"))))

	gap := NewGap(wire.Gap{Topic: "a.b", Reason: wire.GapSlow, After: wire.Position{Topic: "a.b", Epoch: "k3", Offset: 1}, Position: at})
	require.Equal(t, "event: gap\ndata: "+`{"gap":{"topic":"a.b","reason":"slow","after":"a.b@k3:1","position":"a.b@k3:18"}}`+"\nid: a.b@k3:18\n\n",
		string(gap.Bytes(EventStream)))

	moved := NewMoved([]wire.Position{at})
	require.Equal(t, "event: moved\ndata: "+`{"moved":{"positions":["a.b@k3:18"]}}`+"\nid: a.b@k3:18\n\n", string(moved.Bytes(EventStream)))

	require.Equal(t, ":\n\n", string(EventStream.Heartbeat()))
	require.Equal(t, "event: heartbeat\ndata: {}\n\n", string(HeartbeatEvent()))

	e := Event{ID: []byte("a.b@k3:18")}
	require.Equal(t, "event: hello\ndata: "+`{"hello":{"positions":["a.b@k3:18"]}}`+"\nid: a.b@k3:18\n\n",
		string(e.Append(nil, wire.Content{Hello: &wire.Hello{Positions: []wire.Position{at}}})))
	require.Equal(t, "event: end\ndata: "+`{"end":{"title":"","status":503,"code":"draining"}}`+"\n\n",
		string(Event{}.Append(nil, wire.Content{End: &wire.Problem{Status: 503, Code: wire.CodeDraining}})))
}

func TestATimeToRetryIsRoundedUp(t *testing.T) {
	for after, want := range map[time.Duration]int64{
		0: 1, time.Nanosecond: 1, time.Millisecond: 1, time.Millisecond + 1: 2, 1500 * time.Millisecond: 1500, time.Minute: 60_000,
	} {
		require.Equal(t, want, problem.New(wire.CodeOverloaded, "", "").Retry(after).RetryAfterMS, after)
	}
}

func TestReconnectsAreSpread(t *testing.T) {
	seen := map[int64]bool{}
	for range 100 {
		ms := EventRetry(&wire.Problem{Code: wire.CodeDraining})
		require.True(t, 1000 <= ms && ms <= 2000, "%d ms", ms)
		seen[ms] = true
	}
	require.Greater(t, len(seen), 10)
	require.EqualValues(t, 17, EventRetry(&wire.Problem{RetryAfterMS: 17}))
	require.Contains(t, string(Event{RetryMS: 17}.Append(nil, wire.Content{End: &wire.Problem{}})), "retry: 17\nevent: end\n")
}
