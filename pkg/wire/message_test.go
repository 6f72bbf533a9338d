package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsText(t *testing.T) {
	for _, tt := range []struct {
		mediaType string
		text      bool
	}{
		{"text/plain", true},
		{"TEXT/Plain", true},
		{"text/plain; charset=utf-8", true},
		{`text/plain; charset="UTF-8"`, true},
		{"text/plain;charset=US-ASCII", true},
		{"text/plain; charset=iso-8859-1", false},
		{"text/plain; charset=utf-8; charset=utf-16", false},
		{"text/plain; format=flowed", true},
		{"application/ld+json", true},
		{"application/atom+xml", true},
		{"application/xml", true},
		{"application/javascript", true},
		{"application/octet-stream", false},
		{"application/cbor", false},
		{"image/png", false},
		{"textual/plain", false},
		{"text", false},
		{"text/", false},
		{"/", false},
		{"", false},
		{";", false},
	} {
		m := &Message{Type: tt.mediaType, Data: []byte("h\u00e9")}
		require.Equal(t, tt.text, m.IsText(), "%q", tt.mediaType)
		m.Data = []byte{'h', 0xff}
		require.False(t, m.IsText(), "%q: not UTF-8", tt.mediaType)
	}
}

// Size counts everything that a retained message keeps in memory.
func TestSizeCountsEverything(t *testing.T) {
	empty := &Message{}
	require.Positive(t, empty.Size(), "a history of empty messages is bounded, too")
	full := &Message{Type: "ab", Data: []byte("cde"), ID: "fghi", Key: "jklmn", Client: "opqrst", By: "uvwxyz0", Claims: []byte(`{"a":12}`)}
	require.Equal(t, empty.Size()+2+3+4+5+6+7+8, full.Size())
}

// Subscribers do not learn the id of the publisher.
func TestNoFrameNamesTheClient(t *testing.T) {
	m := Message{Position: someTopic, Data: []byte("1"), Client: "secret"}
	require.NotContains(t, string(appendMessage(nil, &m)), "secret")
}
