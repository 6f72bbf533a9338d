//go:build !race

package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A publish on the lane allocates its topic, its payload, its message and its frame.
func TestAPublishAllocatesWhatItKeeps(t *testing.T) {
	a := newApp(t)
	topic, payload, contentType := []byte("a"), []byte("1"), "application/json"
	publish := func() {
		_, err := a.Publish(NoWait, Caller{}, Publish{
			Topic: string(topic), Payload: payload, ContentType: HeaderOf([]string{contentType}),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	require.LessOrEqual(t, testing.AllocsPerRun(1000, publish), 4.0)
}
