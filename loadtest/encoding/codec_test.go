package encoding

import (
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"
)

func read(c codec, body []byte) (all []frame, err error) {
	err = c.frames(body, func(f frame) error {
		all = append(all, f)
		return nil
	})
	return all, err
}

func codecNamed(name string) codec {
	for _, c := range codecs() {
		if c.name == name {
			return c
		}
	}
	panic(name)
}

func TestFramesBringTheObjectsThatWereEncoded(t *testing.T) {
	objects := newObjects(newRandom(7, 0), 5)
	p := position("a.b", 18)
	for name, message := range map[string]func() []byte{
		JSON: func() []byte {
			b, _ := codecNamed(JSON).encode(objects)
			return append([]byte("\n"), jsonMessage(p, b)...)
		},
		CBOR: func() []byte {
			b, _ := codecNamed(CBOR).encode(objects)
			return append([]byte{cborHeartbeat}, cborMessage(p, b)...)
		},
	} {
		c, body := codecNamed(name), message()
		got, err := read(c, append(body, body...))
		require.NoError(t, err)
		require.Len(t, got, 2, "a heartbeat is none")
		require.Equal(t, frame{position: p, objects: objects}, got[0])
		for n := 2; n < len(body); n++ {
			_, err := read(c, body[:n])
			require.Error(t, err, "%s: %d of %d bytes", name, n, len(body))
		}
	}
}

func TestFramesThatAreNoMessagesOfOurs(t *testing.T) {
	gap, _ := cbor.Marshal([]any{1, "a", "slow", "k3", 9, "k3", 12})
	opaque, _ := cbor.Marshal([]any{0, "a", "k3", 9, 1, "application/cbor", []byte{1}, nil, nil})
	typed, _ := cbor.Marshal([]any{0, "a", "k3", 9, 1, "text/plain", nil, nil, nil})
	end, _ := cbor.Marshal([]any{3, map[string]any{"code": "draining"}})
	for _, c := range []struct {
		codec  string
		body   string
		gap    bool
		opaque string
		says   string
	}{
		{JSON, `{"gap":{"topic":"a","reason":"slow"}}` + "\n", true, "", "slow"},
		{JSON, `{"end":{"code":"draining"}}` + "\n", false, "", "draining"},
		{JSON, `{"position":"a@k3:1","time":1,"type":"application/cbor","base64":"gA=="}` + "\n", false, "application/cbor", "gA=="},
		{CBOR, string(gap), true, "", "slow"},
		{CBOR, string(end), false, "", "draining"},
		{CBOR, string(opaque), false, "application/cbor", "h'01'"},
		{CBOR, string(typed), false, "text/plain", "null"},
	} {
		got, err := read(codecNamed(c.codec), []byte(c.body))
		require.NoError(t, err, c.body)
		require.Len(t, got, 1)
		require.Equal(t, c.gap, got[0].gap, c.body)
		require.Equal(t, c.opaque, got[0].opaque, c.body)
		require.Contains(t, got[0].other, c.says)
	}
	for _, wrong := range []string{"\xff", "\x83", "\x01", "\x89\x00\x61"} {
		_, err := read(codecNamed(CBOR), []byte(wrong))
		require.Error(t, err, "%x", wrong)
	}
}

func FuzzFrames(f *testing.F) {
	objects := newObjects(newRandom(7, 0), 2)
	text, _ := codecNamed(JSON).encode(objects)
	binary, _ := codecNamed(CBOR).encode(objects)
	f.Add(jsonMessage(position("a", 1), text))
	f.Add(cborMessage(position("a", 1), binary))
	f.Add([]byte{0x87, 0x01, cborHeartbeat})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, c := range codecs() {
			frames, err := read(c, body)
			for _, f := range frames {
				if err == nil && f.other == "" && f.position.Topic == "" {
					require.NotEqual(t, JSON, c.name, "a message without position")
				}
			}
		}
	})
}

// The same seed makes the same objects, another client's are others, and both
// encodings bring them back.
func TestObjectsAreMadeOfTheSeed(t *testing.T) {
	objects := newObjects(newRandom(1, 0), 50)
	require.Equal(t, objects, newObjects(newRandom(1, 0), 50))
	require.NotEqual(t, objects, newObjects(newRandom(1, 1), 50))
	require.NotEqual(t, objects, newObjects(newRandom(2, 0), 50))
	require.NotEqual(t, objects[0], objects[1])
}
