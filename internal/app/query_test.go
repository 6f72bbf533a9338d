package app

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// A decoder is decoded when the test lets it.
type decoder struct{ began, end chan struct{} }

func (d *decoder) UnmarshalJSON([]byte) error {
	d.began <- struct{}{}
	<-d.end
	return nil
}

func TestOneLargeBodyIsDecodedAtATime(t *testing.T) {
	a := newApp(t)
	for name, row := range map[string]struct{ bytes, atOnce int }{
		"large": {largeBody + 1, 1},
		"small": {largeBody, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a.decoding = make(chan struct{}, cap(a.decoding)) // of this bubble
				text := []byte(`"` + strings.Repeat("x", row.bytes-2) + `"`)
				d := &decoder{began: make(chan struct{}, 3), end: make(chan struct{})}
				for range 3 {
					go func() { _ = a.readJSON(func(int) ([]byte, error) { return text, nil }, d) }()
				}
				for left := 3; left > 0; left-- {
					synctest.Wait()
					require.Len(t, d.began, min(row.atOnce, left))
					<-d.began
					d.end <- struct{}{}
				}
			})
		})
	}
}

func TestAValueOfTheWrongTypeIsQuoted(t *testing.T) {
	for value, detail := range map[string]string{
		"0.5":                          `"ttl" cannot be 0.5`,
		"-1":                           `"ttl" cannot be -1`,
		"1" + strings.Repeat("9", 400): `"ttl" cannot be 1` + strings.Repeat("9", 63) + "…",
		`"x"`:                          `"ttl" cannot be of the type string`,
	} {
		var into struct {
			TTL *uint64 `json:"ttl"`
		}
		err := json.Unmarshal([]byte(`{"ttl":`+value+`}`), &into)
		require.Equal(t, detail, unreadable(err).Detail)
	}
	require.Equal(t, `ttl cannot be "0.5"`, outside("ttl", "0.5", 1, 9).Detail)
}
