package httpapi

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/pubsubjs"
)

// module requests a module of the JavaScript client and returns the answer with its body.
func (k *kit) module(method string, headers ...string) (*http.Response, []byte) {
	k.Helper()
	resp := k.do(method, "/v1/client.js", "", headers...)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(k, err)
	return resp, body
}

// Pages of all origins load the client, whatever cors.origins says. A daemon that drains
// serves it, too.
func TestEveryPageMayLoadTheClient(t *testing.T) {
	for _, origins := range [][]string{nil, {"https://app.example"}, {"*"}} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, settings{origins: origins})
			k.cfg.Sessions.BeginDrain(goingAway())
			for _, page := range []string{"https://app.example", "https://evil.example", "null"} {
				resp, body := k.module("GET", "Origin: "+page)
				require.Equal(t, http.StatusOK, resp.StatusCode)
				require.Equal(t, pubsubjs.Load("client.js").Text, body)
				require.Equal(t, []string{"*"}, resp.Header["Access-Control-Allow-Origin"])
				require.Equal(t, "public, no-cache", resp.Header.Get("Cache-Control"))
				require.Equal(t, "text/javascript; charset=utf-8", resp.Header.Get("Content-Type"))
				require.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"))
				require.Equal(t, []string{"Accept-Encoding"}, resp.Header["Vary"])

				head, none := k.module("HEAD", "Origin: "+page)
				require.Empty(t, none)
				require.EqualValues(t, len(body), head.ContentLength)
				require.Equal(t, resp.Header, head.Header)
			}
		})
	}
}

func TestABrowserKeepsTheClientWhileItIsCurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{})
		for _, encoding := range []string{"identity", "gzip"} {
			first, body := k.module("GET", "Accept-Encoding: "+encoding)
			tag := first.Header.Get("ETag")
			require.Regexp(t, `^"[0-9a-f]{32}(-gzip)?"$`, tag)
			for _, same := range []string{tag, "W/" + tag, `"old", ` + tag, "*"} {
				resp, none := k.module("GET", "Accept-Encoding: "+encoding, "If-None-Match: "+same)
				require.Equal(t, http.StatusNotModified, resp.StatusCode, same)
				require.Empty(t, none)
				require.Equal(t, tag, resp.Header.Get("ETag"))
				require.Equal(t, "*", resp.Header.Get("Access-Control-Allow-Origin"))
			}
			for _, other := range []string{`"old"`, "", tag[1:]} {
				resp, again := k.module("GET", "Accept-Encoding: "+encoding, "If-None-Match: "+other)
				require.Equal(t, http.StatusOK, resp.StatusCode, other)
				require.Equal(t, body, again)
			}
		}
	})
}

func TestTheClientIsCompressedForThoseWhoAcceptIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{})
		plain, text := k.module("GET", "Accept-Encoding: br, identity")
		require.Empty(t, plain.Header.Get("Content-Encoding"))
		packed, short := k.module("GET", "Accept-Encoding: gzip, br")
		require.Equal(t, "gzip", packed.Header.Get("Content-Encoding"))
		require.NotEqual(t, plain.Header.Get("ETag"), packed.Header.Get("ETag"))
		require.Less(t, len(short), len(text)/2)
		r, err := gzip.NewReader(bytes.NewReader(short))
		require.NoError(t, err)
		unpacked, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, text, unpacked)
	})
}
