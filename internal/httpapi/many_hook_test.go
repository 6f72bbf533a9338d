package httpapi

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A request with many hook calls releases its slot between messages, so that other calls
// get it.
func TestManyMessagesWithAHookShareTheirSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatekeeper{answers: func(*wire.Message) (*wire.PublishItem, error) {
			time.Sleep(time.Second)
			return nil, nil
		}}
		k := newKit(t, lanetest.Settings{Hook: g, Limits: limit.Config{Calls: 1, Wait: 2 * time.Second}})
		many := make(chan string, 1)
		go func() {
			many <- k.wantOK("/v1/messages", "["+strings.Repeat(`{"topic":"asked.a","data":1},`, 99)+`{"topic":"b","data":1}]`, lanetest.JSONType)
		}()
		synctest.Wait()
		for range 10 {
			begun := time.Now()
			k.wantOK("/v1/topics/b/messages", "1", lanetest.JSONType)
			require.LessOrEqual(t, time.Since(begun), time.Second)
		}
		require.Equal(t, 100, strings.Count(<-many, `"position"`))
		require.Equal(t, int32(99), g.calls.Load())
	})
}

// When a client ignores Retry-After, refused messages delay the answer to its whole
// batch.
func TestARefusalAmongManyDelaysTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: limit.Rates{limit.Publishes: {limit.Address: {PerSecond: 1, Burst: 10}}}, Wait: 2 * time.Second}})
		body := "[" + strings.Repeat(`{"topic":"a","data":1},`, 99) + `{"topic":"a","data":1}]`
		begun := time.Now()
		for range 10 {
			results := k.wantOK("/v1/messages", body, lanetest.JSONType)
			require.Equal(t, 100, strings.Count(results, `"position"`)+strings.Count(results, `"limited"`))
		}
		require.GreaterOrEqual(t, time.Since(begun), 20*time.Second)
	})
}

// When one message of a batch gets no slot, the remaining messages fail at once.
// Otherwise, each would wait as long.
func TestManyMessagesWithoutASlotFailTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k *kit
		g := &gatekeeper{answers: func(*wire.Message) (*wire.PublishItem, error) {
			go func() { _, _ = k.Parts.Limiter.Begin(context.Background(), limit.Who{}, false) }() // takes the slot and keeps it
			time.Sleep(time.Second)
			return nil, nil
		}}
		k = newKit(t, lanetest.Settings{Hook: g, Limits: limit.Config{Calls: 1, Wait: 2 * time.Second}})
		begun := time.Now()
		results := k.wantOK("/v1/messages", "["+strings.Repeat(`{"topic":"asked.a","data":1},`, 99)+`{"topic":"b","data":1}]`, lanetest.JSONType)
		require.Equal(t, 3*time.Second, time.Since(begun))
		require.Equal(t, 1, strings.Count(results, `"position"`))
		require.Equal(t, 99, strings.Count(results, `"overloaded"`))
	})
}
