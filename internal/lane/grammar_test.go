package lane

import (
	"bufio"
	"cmp"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/cors"
)

// everyHost allows every name in Host.
func everyHost() *cors.Hosts { return cors.NewHosts([]string{cors.Every}, false, zap.NewNop()) }

func newParser(origins ...string) *parser {
	return &parser{lane: &Lane{fields: newFieldCache(), cfg: Config{Origins: cors.New(origins, zap.NewNop()), Hosts: everyHost()}}}
}

const someFields = "Host: h:80\r\nConnection: Keep-Alive\r\nAccept: */*\r\nSEC-FETCH-SITE: same-origin\r\nCookie: a=b\r\n"

var ours = map[string]form{
	"GET /v1/sessions/n.id-_/poll?ack=1 HTTP/1.1\r\n" + someFields + "\r\n":                                                     pollForm,
	"GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\n\r\n":                                                                      pollForm,
	"GET /v1/sessions/id/poll?a=%41&b=+ HTTP/1.1\r\nhost:h\r\n\r\n":                                                             pollForm,
	"GET /v1/poll?topic=a@k3:17 HTTP/1.1\r\nHost: h\r\n\r\n":                                                                    topicsForm,
	"POST /v1/topics/a.b/messages?key=k HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi":         publishForm,
	"POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nIdempotency-Key: \"x\"\r\nDate:\r\n\r\n":            foreign,
	"POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nIdempotency-Key: \"x\"\r\n\r\n":                     publishForm,
	"POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nhi":                                             unfinished,
	"GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 1.2.3.4\r\nAuthorization: Bearer x\r\nVia: 1.1 p\r\n\r\n": pollForm,
}

var notOurs = map[string]string{
	"no end of the head":       "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\n",
	"no Host":                  "GET /v1/sessions/id/poll HTTP/1.1\r\n\r\n",
	"two Hosts":                "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nhost: h\r\n\r\n",
	"a Host with a slash":      "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h/\r\n\r\n",
	"HTTP/1.0":                 "GET /v1/sessions/id/poll HTTP/1.0\r\nHost: h\r\n\r\n",
	"a bare line feed":         "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\nAccept: */*\r\n\r\n",
	"a bare carriage return":   "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\rx\r\n\r\n",
	"a folded field":           "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nAccept: a\r\n b\r\n\r\n",
	"a space before the colon": "GET /v1/sessions/id/poll HTTP/1.1\r\nHost : h\r\n\r\n",
	"a name beyond ASCII":      "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nauthor\u0130zation: x\r\n\r\n",
	"no colon":                 "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nAccept\r\n\r\n",
	"an empty key":             "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nIdempotency-Key: \r\n\r\n",
	"two keys":                 "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nIdempotency-Key: a\r\nIdempotency-Key: a\r\n\r\n",
	"a tab in a value":         "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nAccept:\ta\r\n\r\n",
	"a NUL":                    "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nAccept: \x00\r\n\r\n",
	"a byte above ASCII":       "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nAccept: \xe4\r\n\r\n",
	"an unlisted field":        "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nUpgrade: x\r\n\r\n",
	"Connection: close":        "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
	"a transfer coding":        "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
	"two lengths":              "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1",
	"a list of lengths":        "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\n1",
	"a length with a sign":     "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n1",
	"an empty length":          "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n",
	"a POST without length":    "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\n\r\n",
	"a GET with a body":        "GET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1",
	"an escaped name":          "GET /v1/sessions/i%64/poll HTTP/1.1\r\nHost: h\r\n\r\n",
	"no name":                  "GET /v1/sessions//poll HTTP/1.1\r\nHost: h\r\n\r\n",
	"a longer path":            "GET /v1/sessions/id/polls HTTP/1.1\r\nHost: h\r\n\r\n",
	"a space in the query":     "GET /v1/sessions/id/poll?a= b HTTP/1.1\r\nHost: h\r\n\r\n",
	"a fragment":               "GET /v1/sessions/id/poll?a#b HTTP/1.1\r\nHost: h\r\n\r\n",
	"two spaces":               "GET  /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\n\r\n",
	"another method":           "HEAD /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\n\r\n",
	"a form of address":        "GET http://h/v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\n\r\n",
	"an empty line before it":  "\r\nGET /v1/sessions/id/poll HTTP/1.1\r\nHost: h\r\n\r\n",
	"nothing":                  "",
}

func TestTheLaneReadsOnlyItsForms(t *testing.T) {
	for text, want := range ours {
		behind := "more"
		if want == unfinished {
			behind = ""
		}
		p := newParser()
		for range 2 { // the second time, the parser knows the block of fields
			var r parsed
			require.Equal(t, want, p.read([]byte(text+behind), &r), "%q", text)
		}
	}
	for name, text := range notOurs {
		var r parsed
		require.Equal(t, foreign, newParser().read([]byte(text), &r), name)
	}
}

// net/http reads each of these requests with the same result.
func TestTheLaneReadsAsNetHTTPDoes(t *testing.T) {
	for text, form := range ours {
		if form == foreign || form == unfinished {
			continue
		}
		var mine parsed
		newParser().read([]byte(text), &mine)
		theirs, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		require.NoError(t, err, "%q", text)
		require.Equal(t, theirs.URL.RawQuery, string(mine.query))
		require.Equal(t, theirs.Host, mine.fields.host)
		require.Equal(t, theirs.Header.Get("Authorization"), mine.fields.authorization)
		require.Equal(t, theirs.Header.Get("Content-Type"), mine.fields.contentType)
		require.Equal(t, theirs.Header.Get("Idempotency-Key"), mine.fields.idempotencyKey)
		if form != topicsForm {
			require.Contains(t, theirs.URL.Path, "/"+string(mine.name)+"/")
		}
		body, err := io.ReadAll(theirs.Body)
		require.NoError(t, err)
		require.Equal(t, string(body), string(mine.body))
		require.Len(t, text, mine.length)
	}
}

// The lane hands publishes that cors.Policy may refuse back to net/http.
func TestTheLanePublishesOnlyForAllowedOrigins(t *testing.T) {
	some, every := []string{"https://app", "http://local:3000"}, []string{cors.Every}
	for text, want := range map[string]struct{ none, some, every bool }{
		"":                            {true, true, true},
		"Sec-Fetch-Site: same-origin": {true, true, true},
		"Sec-Fetch-Site: none":        {true, true, true},
		"Sec-Fetch-Site: cross-site":  {false, false, true},
		"Sec-Fetch-Site: same-site":   {false, false, true},
		"Origin: http://h":            {true, true, true},
		"Origin: http://evil":         {false, false, true},
		"Origin: null":                {false, false, true},
		"Origin: http://h:8080":       {false, false, true},
		"Origin: https://app":         {false, true, true},
		"Origin: https://App":         {false, false, true},
		"Origin: https://app/":        {false, false, true},
		"Origin: http://app":          {false, false, true},
		"Origin: http://local:3000":   {false, true, true},
		"Origin: http://local":        {false, false, true},
		"Sec-Fetch-Site: same-origin\r\nOrigin: http://evil": {true, true, true}, // browsers set the first correctly
		"Sec-Fetch-Site: cross-site\r\nOrigin: https://app":  {false, true, true},
		"Sec-Fetch-Site: cross-site\r\nOrigin: http://evil":  {false, false, true},
	} {
		wantPasses(t, text, nil, want.none)
		wantPasses(t, text, some, want.some)
		wantPasses(t, text, every, want.every)
	}
}

func wantPasses(t *testing.T, lines string, origins []string, want bool) {
	t.Helper()
	block := "Host: h\r\n"
	head := http.Header{}
	for line := range strings.SplitSeq(lines, "\r\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			block += line + "\r\n"
			head.Set(name, value)
		}
	}
	f := newParser(origins...).fieldsOf([]byte(block + "\r\n"))
	require.NotNil(t, f, lines)
	require.Equal(t, want, f.isAllowed, "%s, where %v may", lines, origins)
	check := cors.New(origins, zap.NewNop()).Check(&http.Request{Method: "POST", Host: "h", Header: head})
	require.Equal(t, check == nil, want, "as net/http: %s, where %v may", lines, origins)
}

// Clients of one browser share one block of fields.
func TestBlocksOfFieldsAreShared(t *testing.T) {
	lane := newParser().lane
	text := []byte("GET /v1/sessions/id/poll HTTP/1.1\r\n" + someFields + "\r\n")
	var one, two parsed
	require.Equal(t, pollForm, (&parser{lane: lane}).read(text, &one))
	require.Equal(t, pollForm, (&parser{lane: lane}).read(text, &two))
	require.Same(t, one.fields, two.fields)
}

// A block with an idempotency key, the id of a request or its trace belongs to one request. In
// the cache it would replace a block that comes again.
func TestBlocksOfOneRequestAreNotCached(t *testing.T) {
	p := newParser()
	begin := "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n"
	var plain, keyed parsed
	require.Equal(t, publishForm, p.read([]byte(begin+"\r\n"), &plain))
	for _, field := range []string{"Idempotency-Key", "Idempotency-Key", "X-Request-Id", "traceparent"} {
		require.Equal(t, publishForm, p.read([]byte(begin+field+": k\r\n\r\n"), &keyed))
		require.Equal(t, "k", cmp.Or(keyed.fields.idempotencyKey, keyed.fields.requestID, keyed.fields.traceparent))
		require.Same(t, plain.fields, p.last)
		require.NotSame(t, keyed.fields, p.lane.fields.slot(keyed.fields.block).Load())
	}
}

// The lane serves only names that hosts allow, also if it read the same fields before a
// reload. Other requests go to net/http.
func TestTheLaneServesOnlyAllowedHosts(t *testing.T) {
	p := newParser()
	text := []byte("GET /v1/poll?topic=a HTTP/1.1\r\nHost: app.example:8080\r\n\r\n")
	for range 2 {
		var r parsed
		require.Equal(t, topicsForm, p.read(text, &r))
		require.Equal(t, topicsForm, p.read(text, &r), "the fast path")
		p.lane.cfg.Hosts.Reload([]string{"other.example"})
		require.Equal(t, foreign, p.read(text, &r))
		require.Equal(t, foreign, (&parser{lane: p.lane}).read(text, &r), "on another connection")
		p.lane.cfg.Hosts.Reload([]string{"app.example"})
	}
}
