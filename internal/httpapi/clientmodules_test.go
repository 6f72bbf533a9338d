package httpapi

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/pubsubjs"
)

// module requests a module of the JavaScript client and returns the answer's status, headers and body.
func (k *kit) module(method string, headers ...string) (int, http.Header, []byte) {
	k.Helper()
	resp := k.Do(method, "/v1/client.js", "", headers...)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(k, err)
	return resp.StatusCode, resp.Header, body
}

// Pages of all origins load the client, whatever cors.origins says. A daemon that drains
// serves it, too.
func TestEveryPageMayLoadTheClient(t *testing.T) {
	for _, origins := range [][]string{nil, {"https://app.example"}, {"*"}} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{Origins: origins})
			k.Parts.Sessions.BeginDrain(lanetest.GoingAway())
			for _, page := range []string{"https://app.example", "https://evil.example", "null"} {
				status, header, body := k.module("GET", "Origin: "+page)
				require.Equal(t, http.StatusOK, status)
				require.Equal(t, pubsubjs.Load("client.js").Text, body)
				require.Equal(t, []string{"*"}, header["Access-Control-Allow-Origin"])
				require.Equal(t, "public, no-cache", header.Get("Cache-Control"))
				require.Equal(t, "text/javascript; charset=utf-8", header.Get("Content-Type"))
				require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
				require.Equal(t, []string{"Accept-Encoding"}, header["Vary"])

				_, head, none := k.module("HEAD", "Origin: "+page)
				require.Empty(t, none)
				require.Equal(t, strconv.Itoa(len(body)), head.Get("Content-Length"))
				require.Equal(t, header, head)
			}
		})
	}
}

func TestABrowserKeepsTheClientWhileItIsCurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for _, encoding := range []string{"identity", "gzip"} {
			_, first, body := k.module("GET", "Accept-Encoding: "+encoding)
			tag := first.Get("ETag")
			require.Regexp(t, `^"[0-9a-f]{32}(-gzip)?"$`, tag)
			for _, same := range []string{tag, "W/" + tag, `"old", ` + tag, "*"} {
				status, header, none := k.module("GET", "Accept-Encoding: "+encoding, "If-None-Match: "+same)
				require.Equal(t, http.StatusNotModified, status, same)
				require.Empty(t, none)
				require.Equal(t, tag, header.Get("ETag"))
				require.Equal(t, "*", header.Get("Access-Control-Allow-Origin"))
			}
			for _, other := range []string{`"old"`, "", tag[1:]} {
				status, _, again := k.module("GET", "Accept-Encoding: "+encoding, "If-None-Match: "+other)
				require.Equal(t, http.StatusOK, status, other)
				require.Equal(t, body, again)
			}
		}
	})
}

func TestTheClientIsCompressedForThoseWhoAcceptIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		_, plain, text := k.module("GET", "Accept-Encoding: br, identity")
		require.Empty(t, plain.Get("Content-Encoding"))
		_, packed, short := k.module("GET", "Accept-Encoding: gzip, br")
		require.Equal(t, "gzip", packed.Get("Content-Encoding"))
		require.NotEqual(t, plain.Get("ETag"), packed.Get("ETag"))
		require.Less(t, len(short), len(text)/2)
		r, err := gzip.NewReader(bytes.NewReader(short))
		require.NoError(t, err)
		unpacked, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, text, unpacked)
	})
}
