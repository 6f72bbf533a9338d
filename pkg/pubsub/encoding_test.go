package pubsub

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestFormats(t *testing.T) {
	for _, c := range []struct {
		transport Transport
		said, is  Format
		says      string
	}{
		{Auto, "", JSON, ""},
		{Auto, CBOR, CBOR, ""},
		{LongPoll, CBOR, CBOR, ""},
		{TCP, "", CBOR, ""},
		{TCP, CBOR, CBOR, ""},
		{TCP, JSON, "", `only the format "cbor"`},
		{SSE, "", JSON, ""},
		{SSE, CBOR, "", `only the format "json"`},
		{WebSocket, "morse", "", `unknown format "morse"`},
	} {
		o := subscribeOptions{transport: c.transport, format: c.said}
		err := o.resolve()
		if c.says != "" {
			require.ErrorContains(t, err, c.says)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.is, o.format)
	}
}

// Whatever is said on the way, subscribers get the same.
func TestPayloadsAreTheSameInEveryWay(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		want := []wire.Message{
			{Data: []byte(`{"b":[1,2.5,-0.0],"a":"ü"}`)},
			{Data: []byte(`[1e400,2.50]`)}, // which no number of CBOR is
			{Type: "text/plain", Data: []byte("hi\n"), Key: "k", ID: "17"},
			{Type: "image/png", Data: []byte{0x89, 'P', 0xff}},
			{Type: "application/cbor", Data: []byte{0xa1, 1, 2}},
		}
		for _, m := range want {
			f.add("a", m)
		}
		s := subscribe(t, serveFake(t, f), []wire.Start{FromOldest("a")}, w.options...)
		for _, m := range want {
			item, err := s.Next(t.Context())
			require.NoError(t, err)
			m.Position, m.Time = item.Message.Position, item.Message.Time
			require.Equal(t, m, *item.Message)
		}
		synctest.Wait()
	})
}
