package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A sized is a request with n of something that the daemon limits to most.
type sized struct {
	what    string
	most    int
	slack   int // tolerance in both directions: net/http limits heads only roughly
	request func(n int) *http.Request
	code    wire.Code // for a request beyond the limit; empty: net/http answers, without a code
}

const small = "/v1/topics/a/messages"

// sizes are the limits of every part of a request.
var sizes = []sized{
	{"bytes of a message", 64 << 10, 0, func(n int) *http.Request { return asking("POST", small, strings.Repeat("x", n), "text/plain") }, wire.CodeMessageTooLarge},
	{"messages of a request", 1000, 0, func(n int) *http.Request {
		return asking("POST", "/v1/messages", "["+strings.Repeat(`{"topic":"a","data":1},`, n-1)+`{"topic":"a","data":1}]`, jsonText)
	}, wire.CodeMessageTooLarge},
	{"bytes of a request of many", 1 << 20, 0, func(n int) *http.Request {
		return asking("POST", "/v1/messages", padded(`[{"topic":"a","data":1}]`, n), jsonText)
	}, wire.CodeMessageTooLarge},
	{"bytes of another request", 1 << 20, 0, func(n int) *http.Request {
		return asking("POST", "/v1/sessions", padded(`{"topics":["a"]}`, n), jsonText)
	}, wire.CodeMessageTooLarge},
	{"subscriptions of a session", 1000, 0, func(n int) *http.Request {
		return asking("POST", "/v1/sessions", `{"topics":[`+topicsNamed(n)+`]}`, jsonText)
	}, wire.CodeTooManySubscriptions},
	{"bytes of a topic", 255, 0, func(n int) *http.Request {
		return asking("POST", "/v1/topics/"+strings.Repeat("a", n)+"/messages", "1", jsonText)
	}, wire.CodeInvalidTopic},
	{"segments of a topic", 16, 0, func(n int) *http.Request {
		return asking("POST", "/v1/topics/a"+strings.Repeat(".a", n-1)+"/messages", "1", jsonText)
	}, wire.CodeInvalidTopic},
	{"levels of a message in JSON", 64, 0, func(n int) *http.Request {
		return asking("POST", small, strings.Repeat("[", n)+strings.Repeat("]", n), jsonText)
	}, wire.CodeInvalidBody},
	{"bytes of a key", 255, 0, func(n int) *http.Request { return asking("POST", small+"?key="+strings.Repeat("k", n), "1", jsonText) }, wire.CodeInvalidRequest},
	{"bytes of a client's name", 64, 0, func(n int) *http.Request {
		return asking("POST", small+"?client="+strings.Repeat("c", n), "1", jsonText)
	}, wire.CodeInvalidRequest},
	{"bytes of an idempotency key", 255, 0, func(n int) *http.Request {
		return asking("POST", small, "1", jsonText, "Idempotency-Key", strings.Repeat("i", n))
	}, wire.CodeInvalidRequest},
	{"bytes of a URL", maxHeadBytes, 5 << 10, func(n int) *http.Request {
		return asking("GET", "/v1/poll?topic=a@oldest&_="+strings.Repeat("u", n), "", "")
	}, ""},
	{"bytes of a head", maxHeadBytes, 5 << 10, func(n int) *http.Request {
		return asking("GET", "/v1/poll?topic=a@oldest", "", "", "X-Large", strings.Repeat("h", n))
	}, ""},
}

const jsonText = "application/json"

func asking(method, target, body, contentType string, header ...string) *http.Request {
	req, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if len(header) == 2 {
		req.Header.Set(header[0], header[1])
	}
	return req
}

func padded(text string, bytes int) string { return text + strings.Repeat(" ", bytes-len(text)) }

func topicsNamed(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%q", fmt.Sprint("t", i))
	}
	return strings.Join(names, ",")
}

// The daemon accepts sizes up to the limit and refuses larger ones with their code, on
// the lane and off it. Then it keeps serving.
func TestEverySizeHasABound(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "off"} {
		d := start(t, func(c *config.Config) { c.Lane = lane })
		d.post(small, "1")
		for _, s := range sizes {
			status, _ := d.sized(s, s.most-s.slack)
			require.Less(t, status, 300, "%s: %d", s.what, s.most-s.slack)
			status, code := d.sized(s, s.most+max(1, s.slack))
			require.Equal(t, s.code, code, s.what)
			if s.code == "" {
				require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, status, s.what)
			}
			d.post(small, "1")
		}
		require.NoError(t, d.wait())
	}
}

// sized sends a request of size n and returns the status and the code of its answer.
func (d *running) sized(s sized, n int) (int, wire.Code) {
	d.Helper()
	var resp *http.Response
	var err error
	for range 5 { // a client that still sends an unread body may miss the answer
		req := s.request(n)
		req.URL.Scheme, req.URL.Host = "http", d.PublicAddr()
		if resp, err = d.client.Do(req); err == nil {
			break
		}
	}
	require.NoError(d, err, s.what)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d, err, s.what)
	var problem wire.Problem
	_ = json.Unmarshal(text, &problem) // an answer without a problem has no code
	return resp.StatusCode, problem.Code
}
