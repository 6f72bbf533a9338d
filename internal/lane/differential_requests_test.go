package lane_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Origins of pages: two that are allowed and one that is not.
const (
	appPage   = "https://app.example"
	localPage = "http://localhost:3000"
	evilPage  = "https://evil.example"
)

var someOrigins = []string{appPage, localPage}

const (
	pollPath    = "/v1/sessions/SESSION/poll?ack=0"
	publishPath = "/v1/topics/TOPIC.published/messages"
	hostLine    = "Host: HOST\r\n"
)

// request returns a head with a Host and these header lines, and the body.
func request(line, body string, headers ...string) string {
	var b strings.Builder
	b.WriteString(line + " HTTP/1.1\r\n" + hostLine)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n" + body
}

func get(target string, headers ...string) string { return request("GET "+target, "", headers...) }

// post returns a publish of body with its Content-Length.
func post(body string, headers ...string) string {
	return request("POST "+publishPath, body, append(headers, fmt.Sprint("Content-Length: ", len(body)))...)
}

var pollZero = get(pollPath)

// oddScripts returns handwritten requests: after a poll, after a publish, with another
// request behind them, at once and in parts.
func oddScripts() []script {
	var scenes []scene
	afterBoth := func(sc scene) {
		sc.first, sc.patient = pollZero, true
		scenes = append(scenes, sc)
		sc.first, sc.patient = post(`{"first":1}`, "Content-Type: application/json"), false
		scenes = append(scenes, sc)
	}
	for name, text := range oddRequests() {
		afterBoth(scene{name: name, odd: text})
		scenes = append(scenes, scene{name: name + ", with a poll behind it", first: pollZero, odd: text + pollZero})
	}
	for name, text := range pipelined() { // net/http has read these ahead when the lane takes over
		scenes = append(scenes, scene{name: name + ", first of all", odd: text})
	}
	for name, text := range map[string]string{"poll": pollZero, "publish": post(`{"n": 1}`, "Content-Type: application/json")} {
		everywhere := make([]int, 2*len(text)) // longer than text, which grows when the placeholders are filled in
		for at := range everywhere {
			everywhere[at] = at
		}
		afterBoth(scene{name: name + " byte by byte", odd: text, cuts: everywhere})
		afterBoth(scene{name: name + " byte by byte, slowly", odd: text, cuts: everywhere, pause: time.Millisecond})
		for at := 1; at < len(text); at += 7 {
			scenes = append(scenes, scene{name: fmt.Sprint(name, " in two at ", at), first: pollZero, odd: text, cuts: []int{at}, pause: 2 * time.Millisecond})
		}
		for at := 0; at < len(text); at += 5 {
			scenes = append(scenes, scene{name: fmt.Sprint(name, " cut off at ", at), first: pollZero, odd: text[:at]})
		}
	}
	slices.SortStableFunc(scenes, func(a, b scene) int { return strings.Compare(a.name, b.name) }) // maps have no order
	scripts := make([]script, len(scenes))
	for i, sc := range scenes {
		scripts[i] = func(string) scene { return sc }
	}
	return scripts
}

// oddRequests returns single requests, or several in one write, by name.
func oddRequests() map[string]string {
	odd := map[string]string{}
	for _, more := range []map[string]string{pipelined(), oddBodies(), oddKeys(), oddEncodings(), oddHeads(), oddTargets(), oddMethods(), requestIDs()} {
		for name, text := range more {
			odd[name] = text
		}
	}
	return odd
}

// requestIDs are requests of every kind of answer with ids, and between them some without.
func requestIDs() map[string]string {
	const id = "X-Request-Id: "
	return map[string]string{
		"ids of polls":            get(pollPath, id+"r1") + pollZero + get(pollPath, "x-request-id:r2") + pollZero,
		"ids of one frame":        get(pollPath+"&mode=single", id+"r1") + get("/v1/sessions/SESSION/poll?ack=1&mode=single"),
		"ids of publishes":        post("1", id+"r1") + post("2") + post("3", id+"r2"),
		"an id of a large answer": get("/v1/poll?topic=TOPIC.stateless@oldest", id+"r1", "Accept-Encoding: gzip") + get("/v1/poll?topic=TOPIC.stateless@oldest"),
		"an id in gzip":           post(`"`+strings.Repeat("gzip", 500)+`"`, "Content-Type: application/json") + get("/v1/poll?topic=TOPIC.published@oldest", id+"r1", "Accept-Encoding: gzip"),
		"an id of a parked poll":  get("/v1/sessions/SESSION/poll?ack=2", id+"r1") + pollZero,
		"an id of a stream":       get(pollPath+"&mode=stream", id+"r1"),
		"an id of a refusal":      get("/v1/sessions/SESSION/poll?ack=9", id+"r1") + get("/v1/sessions/SESSION/poll?ack=9"),
		"an id and a page":        get(pollPath, id+"r1", "Origin: "+appPage),
		"ids of other paths":      get("/v1/topics/TOPIC.polled", id+"r1") + get("/nothing", id+"r2") + pollZero,
		"two ids":                 get(pollPath, id+"r1", id+"r2") + pollZero,
		"odd ids": get(pollPath, id) + get(pollPath, id+" ") + get(pollPath, id+"a b") + get(pollPath, id+"a,b") + get(pollPath, id+strings.Repeat("x", 129)) +
			get(pollPath, id+strings.Repeat("x", 128)) + get(pollPath, id+"\"<script>\"") + post("1", id+"\xe4") + post("1", id+"a\tb"),
	}
}

func pipelined() map[string]string {
	parked := get("/v1/sessions/SESSION/poll?ack=2")
	return map[string]string{
		"two polls":                               pollZero + pollZero,
		"ten polls":                               strings.Repeat(pollZero, 10),
		"a poll and a publish":                    pollZero + post("1"),
		"a publish and a poll":                    post("1") + pollZero,
		"a hundred publishes":                     strings.Repeat(post("1"), 100),
		"a publish behind a parked poll":          parked + post("1"),
		"polls behind a parked poll":              parked + parked + pollZero,
		"a bad request behind a parked poll":      parked + "\x00\x01\x02",
		"half a request behind a parked poll":     parked + "GET /v1/pol",
		"half a publish behind a parked poll":     parked + "POST " + publishPath + " HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100\r\n\r\nhalf",
		"much behind a parked poll":               parked + strings.Repeat(post(strings.Repeat("x", 500)), 40),
		"another path behind a poll":              pollZero + get("/v1/topics/TOPIC.polled"),
		"polls around another path":               pollZero + get("/v1/sessions/SESSION") + pollZero + get("/nothing") + pollZero,
		"publishes around another path":           post("1") + get("/v1/topics/TOPIC.published") + post("2") + get("/v1/topics/TOPIC.published/messages") + post("3"),
		"a session opened and closed in between":  pollZero + request("POST /v1/sessions", `{"topics":["TOPIC.polled@oldest"]}`, "Content-Length: 36") + pollZero + get("/v1/sessions/SESSION") + request("DELETE /v1/sessions/SESSION", "") + pollZero,
		"a change in between":                     pollZero + request("PATCH /v1/sessions/SESSION", `{"add":["TOPIC.stateless@oldest"]}`, "Content-Length: 36") + get("/v1/sessions/SESSION/poll?ack=2"),
		"a poll after close":                      pollZero + get(pollPath, "Connection: close") + pollZero,
		"empty lines before a poll":               "\r\n\r\n" + pollZero,
		"an empty line behind a body":             post("1") + "\r\n" + post("2"),
		"an empty line behind bare LF":            strings.TrimSuffix(pollZero, "\r\n\r\n") + "\n\r\n\r\n" + pollZero,
		"a multiple answer, and a poll behind it": get(pollPath+"&mode=multiple") + pollZero,
		"a stream, and a poll behind it":          get(pollPath+"&mode=stream") + pollZero,
		"a stateless stream":                      get("/v1/poll?topic=TOPIC.stateless@oldest&mode=stream"),
	}
}

func oddBodies() map[string]string {
	chunked := "Transfer-Encoding: chunked"
	publish := "POST " + publishPath
	return map[string]string{
		"GET with a body":                  request("GET "+pollPath, "hello", "Content-Length: 5"),
		"GET with a length of 0":           request("GET "+pollPath, "", "Content-Length: 0"),
		"GET with a length and no body":    request("GET "+pollPath, "", "Content-Length: 5"),
		"GET with a chunked body":          request("GET "+pollPath, "5\r\nhello\r\n0\r\n\r\n", chunked),
		"GET with an empty chunked body":   request("GET "+pollPath, "0\r\n\r\n", chunked),
		"GET with a poll as its body":      request("GET "+pollPath, pollZero, fmt.Sprint("Content-Length: ", len(pollZero)-len("HOST")+len(sceneHost)-len("SESSION")+27)),
		"POST without a length":            request(publish, ""),
		"POST without a length, but bytes": request(publish, "hello"),
		"POST with a length of 0":          request(publish, "", "Content-Length: 0"),
		"JSON with a length of 0":          request(publish, "", "Content-Length: 0", "Content-Type: application/json"),
		"doubled length, equal":            request(publish, "hello", "Content-Length: 5", "Content-Length: 5"),
		"doubled length, unequal":          request(publish, "hello", "Content-Length: 5", "Content-Length: 4"),
		"listed length":                    request(publish, "hello", "Content-Length: 5, 5"),
		"length with a plus":               request(publish, "hello", "Content-Length: +5"),
		"length with a minus":              request(publish, "hello", "Content-Length: -5"),
		"length with zeros":                request(publish, "hello", "Content-Length: 0000005"),
		"length with many zeros":           request(publish, "hello", "Content-Length: 0000000000000000000000000005"),
		"length in hex":                    request(publish, "hello", "Content-Length: 0x5"),
		"length with a fraction":           request(publish, "hello", "Content-Length: 5.0"),
		"length with an underscore":        request(publish, "hello", "Content-Length: 1_0"),
		"length in other digits":           request(publish, "hello", "Content-Length: ٥"),
		"empty length":                     request(publish, "hello", "Content-Length:"),
		"length in spaces":                 request(publish, "hello", "Content-Length:  \t 5 \t "),
		"length of nine quintillions":      request(publish, "hello", "Content-Length: 9223372036854775807"),
		"length beyond 63 bits":            request(publish, "hello", "Content-Length: 9223372036854775808"),
		"length beyond 64 bits":            request(publish, "hello", "Content-Length: 18446744073709551621"),
		"length of the limit":              post(strings.Repeat("x", 64<<10)),
		"length beyond the limit":          post(strings.Repeat("x", 64<<10+1)),
		"length far beyond the limit":      post(strings.Repeat("x", 600<<10)),
		"length and chunked":               request(publish, "5\r\nhello\r\n0\r\n\r\n", "Content-Length: 5", chunked),
		"chunked and length":               request(publish, "5\r\nhello\r\n0\r\n\r\n", chunked, "Content-Length: 15"),
		"chunked":                          request(publish, "5\r\nhello\r\n0\r\n\r\n", chunked),
		"chunked with an extension":        request(publish, "5;a=b\r\nhello\r\n0\r\n\r\n", chunked),
		"chunked with a trailer":           request(publish, "5\r\nhello\r\n0\r\nX-After: 1\r\n\r\n", chunked, "Trailer: X-After"),
		"chunked with bare LF":             request(publish, "5\nhello\n0\n\n", chunked),
		"chunked with a bad size":          request(publish, "zz\r\nhello\r\n0\r\n\r\n", chunked),
		"chunked twice":                    request(publish, "5\r\nhello\r\n0\r\n\r\n", chunked, chunked),
		"gzip, chunked":                    request(publish, "5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: gzip, chunked"),
		"identity":                         request(publish, "hello", "Transfer-Encoding: identity", "Content-Length: 5"),
		"xchunked":                         request(publish, "5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: xchunked"),
		"chunked after a tab":              request(publish, "5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding:\tchunked"),
		"CHUNKED":                          request(publish, "5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: CHUNKED"),
		"a coding with a space before it":  request(publish, "5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding : chunked"),
		"Expect":                           request(publish, "hello", "Expect: 100-continue", "Content-Length: 5"),
		"Expect on GET":                    get(pollPath, "Expect: 100-continue"),
		"Expect something else":            request(publish, "hello", "Expect: tea", "Content-Length: 5"),
		"Expect, refused":                  request("POST /v1/topics/_x/messages", "hello", "Expect: 100-continue", "Content-Length: 5"),
		"Expect, too long":                 request(publish, strings.Repeat("x", 70<<10), "Expect: 100-continue", fmt.Sprint("Content-Length: ", 70<<10)),
		"not JSON":                         post("{", "Content-Type: application/json"),
		"JSON, not UTF-8":                  post("\"\xff\"", "Content-Type: application/json"),
		"JSON with white space":            post(" { \"a\" :\t1 }\r\n", "Content-Type: application/json"),
		"JSON nested deep":                 post(strings.Repeat("[", 65)+strings.Repeat("]", 65), "Content-Type: application/json"),
		"two JSON values":                  post("1 2", "Content-Type: application/json"),
		"JSON of another charset":          post("1", "Content-Type: application/json; charset=latin1"),
		"JSON of its charset":              post("1", "Content-Type: application/json; charset=\"UTF-8\""),
		"Application/JSON":                 post(" 1", "Content-Type: Application/JSON"),
		"a form":                           post("a=1", "Content-Type: application/x-www-form-urlencoded"),
		"text":                             post("hé", "Content-Type: text/plain; charset=utf-8"),
		"text that is no UTF-8":            post("h\xe9", "Content-Type: text/plain"),
		"bytes":                            post("\x00\x01\xff"),
		"an empty type":                    post("1", "Content-Type:"),
		"a type that cannot be read":       post("1", "Content-Type: text/"),
		"a type with obs-text":             post("1", "Content-Type: text/\xe9"),
		"a long type":                      post("1", "Content-Type: text/"+strings.Repeat("x", 300)),
		"two types":                        post("1", "Content-Type: text/plain", "Content-Type: application/json"),
		"the body never comes":             request(publish, "", "Content-Length: 10"),
		"a content coding":                 post("1", "Content-Encoding: gzip", "Content-Type: application/json"),
	}
}

// oddKeys returns publishes with idempotency keys. Most of them repeat a key.
func oddKeys() map[string]string {
	once := func(body string, keys ...string) string {
		lines := []string{"Content-Type: text/plain"}
		for _, key := range keys {
			lines = append(lines, "Idempotency-Key:"+key)
		}
		return post(body, lines...)
	}
	long := strings.Repeat("k", 255)
	return map[string]string{
		"a key":                       once("1", " k"),
		"a key twice":                 once("1", " k") + once("1", " k"),
		"a key twice, a poll between": once("1", " k") + pollZero + once("1", " k"),
		"a key in quotes and without": once("1", ` "k"`) + once("1", "k ") + once("1", ` "k" `),
		"a key for another body":      once("1", " k") + once("2", " k") + once("1", " k"),
		"a key for another type":      once("1", " k") + post("1", "Idempotency-Key: k") + post("1", "Content-Type: application/json", "Idempotency-Key: k"),
		"a key for another query":     once("1", " k") + strings.Replace(once("1", " k"), publishPath, publishPath+"?client=c", 1),
		"a key of another topic":      once("1", " k") + strings.Replace(once("1", " k"), "TOPIC.published", "TOPIC.last", 1),
		"JSON with a key, spaced":     post("[1]", "Content-Type: application/json", "Idempotency-Key: k") + post("[ 1 ]", "Content-Type: application/json", "Idempotency-Key: k"),
		"a key that was refused":      post("{", "Content-Type: application/json", "Idempotency-Key: k") + once("1", " k"),
		"a hundred keys":              strings.Repeat(once("1", " a")+once("1", " b"), 50),
		"a long key":                  once("1", long) + once("1", `"`+long+`"`),
		"too long a key":              once("1", long+"k"),
		"an escaped key":              once("1", ` "a\"b\\"`) + once("1", ` a"b`),
		"an empty key":                once("1", "") + once("1", " "),
		"an empty key in quotes":      once("1", `""`),
		"a key with a comma":          once("1", " a, b") + once("1", ` "a, b"`),
		"a key with a space":          once("1", " a b"),
		"a key with a parameter":      once("1", ` "a";b=c`),
		"a key in half quotes":        once("1", ` "a`) + once("1", ` a"`),
		"a key after a tab":           once("1", "\tk") + once("1", "k\t"),
		"a key with a tab":            once("1", "a\tb"),
		"a key with obs-text":         once("1", "\xe9"),
		"two keys":                    once("1", " a", " b"),
		"two keys that are one":       once("1", " a", " a"),
		"a poll with a key":           get(pollPath, "Idempotency-Key: k") + get(pollPath, "Idempotency-Key:") + get(pollPath, "Idempotency-Key: a, b"),
		"a client":                    strings.Replace(post("1"), publishPath, publishPath+"?client=a.b:c", 1),
		"an empty client":             strings.Replace(post("1"), publishPath, publishPath+"?client=", 1),
		"a client that may not be":    strings.Replace(post("1"), publishPath, publishPath+"?client=a%2Fb", 1),
		"two clients":                 strings.Replace(post("1"), publishPath, publishPath+"?client=a&client=b", 1),
		"many in between":             once("1", " k") + request("POST /v1/messages", `[{"topic":"TOPIC.published","data":1}]`, "Content-Type: application/json", fmt.Sprint("Content-Length: ", len(`[{"topic":"TOPIC.published","data":1}]`)-len("TOPIC")+12)) + once("1", " k"),
	}
}

// oddEncodings returns polls for answers that are long enough to compress, and others.
func oddEncodings() map[string]string {
	publish := func(topic string) string {
		text := strings.Repeat("a line of what is said again and again\n", 30) // net/http sends answers of more than 2 KiB in chunks
		return request("POST /v1/topics/TOPIC."+topic+"/messages", text, "Content-Type: text/plain", fmt.Sprint("Content-Length: ", len(text)))
	}
	odd := map[string]string{}
	for _, value := range []string{
		" gzip", " gzip, deflate, br, zstd", "gzip", " GZIP", " x-gzip", " *", " *;q=0", " gzip;q=0", " gzip;q=0.001", " gzip;q=0.5, identity", " gzip;q=x",
		" identity;q=0", " identity", " br", "", " ", " ,gzip,", " gzip\t", "\tgzip", " gzip\x00", " \xff, gzip", " gzip; q=0 ; x=\"a, gzip\"",
	} {
		line := "Accept-Encoding:" + value
		odd[fmt.Sprintf("it accepts %q", value)] = publish("polled") + get(pollPath, line) + publish("published") + get("/v1/poll?topic=TOPIC.published@oldest", line)
	}
	taken := "Accept-Encoding: gzip"
	maps.Copy(odd, map[string]string{
		"gzip in two headers":     publish("polled") + get(pollPath, "Accept-Encoding: br", taken),
		"gzip, one at a time":     publish("polled") + get(pollPath, taken) + get("/v1/sessions/SESSION/poll?ack=2&mode=single", taken),
		"gzip, multiple":          publish("polled") + get(pollPath+"&mode=multiple", taken) + pollZero,
		"gzip, a stream":          publish("polled") + get(pollPath+"&mode=stream", taken),
		"gzip, history":           publish("published") + get("/v1/topics/TOPIC.published/messages", taken) + get("/v1/topics/TOPIC.polled/messages", taken),
		"gzip behind plain":       publish("polled") + pollZero + get(pollPath, taken) + pollZero + get(pollPath, taken),
		"gzip, HTTP/1.0":          publish("polled") + strings.Replace(get(pollPath, taken, "Connection: keep-alive"), "HTTP/1.1", "HTTP/1.0", 1),
		"gzip, and close":         publish("polled") + get(pollPath, taken, "Connection: close"),
		"a problem, gzip":         publish("_x") + get("/v1/sessions/SESSION/poll?ack=99", taken) + get("/v1/poll?topic=", taken),
		"a thousand lines, gzip":  strings.Repeat(publish("published"), 20) + get("/v1/topics/TOPIC.published/messages", taken) + get("/v1/poll?topic=TOPIC.published@oldest", taken),
		"published, gzip":         request("POST "+publishPath, "1", taken, "Content-Length: 1"),
		"nothing to say, gzip":    get(pollPath, taken) + get("/v1/sessions/SESSION/poll?ack=2", taken),
		"gzip, a body and a poll": publish("polled") + request("POST /v1/poll", `{"topics":["TOPIC.polled@oldest"]}`, taken, fmt.Sprint("Content-Length: ", len(`{"topics":["TOPIC.polled@oldest"]}`)-len("TOPIC")+12)) + get(pollPath, taken),
	})
	return odd
}

func oddHeads() map[string]string {
	poll := "GET " + pollPath + " HTTP/1.1\r\n"
	odd := map[string]string{
		"bare LF":                 strings.ReplaceAll(pollZero, "\r\n", "\n"),
		"bare LF in one line":     poll + "Host: HOST\nX-A: b\r\n\r\n",
		"bare CR":                 poll + "Host: HOST\rX-A: b\r\n\r\n",
		"two CRs":                 poll + "Host: HOST\r\r\n\r\n",
		"bare LF at the end":      poll + "Host: HOST\r\n\n",
		"NUL in the line":         "GET /v1/\x00 HTTP/1.1\r\n" + hostLine + "\r\n",
		"folded":                  poll + hostLine + "X-A: a\r\n b\r\n\r\n",
		"folded Accept":           poll + hostLine + "Accept: text/html,\r\n\tapplication/json\r\n\r\n",
		"folded first line":       poll + " X: y\r\n" + hostLine + "\r\n",
		"no Host":                 poll + "\r\n",
		"two Hosts":               poll + hostLine + hostLine + "\r\n",
		"an empty Host":           poll + "Host:\r\n\r\n",
		"a Host with a space":     poll + "Host: a b\r\n\r\n",
		"a Host with a slash":     poll + "Host: a/b\r\n\r\n",
		"a Host with obs-text":    poll + "Host: \xe9\r\n\r\n",
		"HOST in capitals":        poll + "HOST: HOST\r\n\r\n",
		"HTTP/1.0":                "GET " + pollPath + " HTTP/1.0\r\n\r\n",
		"HTTP/1.0, kept":          "GET " + pollPath + " HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"HTTP/1.0 publish":        "POST " + publishPath + " HTTP/1.0\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello",
		"HTTP/0.9":                "GET " + pollPath + "\r\n",
		"HTTP/1.2":                "GET " + pollPath + " HTTP/1.2\r\n" + hostLine + "\r\n",
		"HTTP/2.0":                "GET " + pollPath + " HTTP/2.0\r\n" + hostLine + "\r\n",
		"HTTP/2's preface":        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"http/1.1":                "GET " + pollPath + " http/1.1\r\n" + hostLine + "\r\n",
		"HTTP/1.10":               "GET " + pollPath + " HTTP/1.10\r\n" + hostLine + "\r\n",
		"HTTP/01.1":               "GET " + pollPath + " HTTP/01.1\r\n" + hostLine + "\r\n",
		"two spaces":              "GET  " + pollPath + " HTTP/1.1\r\n" + hostLine + "\r\n",
		"two spaces later":        "GET " + pollPath + "  HTTP/1.1\r\n" + hostLine + "\r\n",
		"a space at the end":      "GET " + pollPath + " HTTP/1.1 \r\n" + hostLine + "\r\n",
		"a tab":                   "GET\t" + pollPath + " HTTP/1.1\r\n" + hostLine + "\r\n",
		"a space in front":        " GET " + pollPath + " HTTP/1.1\r\n" + hostLine + "\r\n",
		"TLS":                     "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"SSH":                     "SSH-2.0-OpenSSH_9\r\n",
		"nothing but CRLF":        "\r\n",
		"no colon":                poll + hostLine + "what\r\n\r\n",
		"no name":                 poll + hostLine + ": what\r\n\r\n",
		"no value":                poll + hostLine + "X-A:\r\n\r\n",
		"a space before a colon":  poll + hostLine + "Accept : text/html\r\n\r\n",
		"a name with a space":     poll + hostLine + "X A: 1\r\n\r\n",
		"a name with obs-text":    poll + hostLine + "X-\xe9: 1\r\n\r\n",
		"8 KiB of headers":        get(pollPath, "X-Long: "+strings.Repeat("x", 8<<10)),
		"nearly 8 KiB of headers": get(pollPath, "X-Long: "+strings.Repeat("x", 8<<10-150)),
		"20 KiB of headers":       get(pollPath, "X-Long: "+strings.Repeat("x", 20<<10)),
		"64 KiB of headers":       get(pollPath, "X-Long: "+strings.Repeat("x", 64<<10)),
		"300 headers":             get(pollPath, strings.Split(strings.TrimSuffix(strings.Repeat("X-Many: 1\n", 300), "\n"), "\n")...),
		"an absurdly long line":   "GET " + pollPath + "&_=" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\n" + hostLine + "\r\n",
		"a long line":             get(pollPath + "&_=" + strings.Repeat("x", 9<<10)),
	}
	for _, line := range headerLines {
		odd["poll with "+line[:min(len(line), 60)]] = get(pollPath, line)
		if !strings.HasPrefix(line, "Content-Length") && !strings.HasPrefix(line, "Transfer-Encoding") {
			odd["publish with "+line[:min(len(line), 60)]] = post("1", line)
		}
	}
	for _, value := range []string{"*/*", "application/*", "application/json", "application/x-ndjson;q=0", "text/html, */*;q=0.1", "*/*;q=0", "text/html", "a\x00", "\xff", ",", ""} {
		odd[fmt.Sprintf("Accept: %q", value)] = get(pollPath, "Accept: "+value)
	}
	odd["two Accepts"] = get(pollPath, "Accept: text/html", "Accept: application/json")
	odd["an Upgrade"] = get(pollPath, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
	odd["a publish from another origin"] = post("1", "Origin: http://evil.example")
	odd["a publish from this origin"] = post("1", "Origin: http://HOST")
	odd["a publish from another site"] = post("1", "Sec-Fetch-Site: cross-site")
	odd["a publish from nowhere"] = post("1", "Sec-Fetch-Site: none")
	odd["a publish from two sites"] = post("1", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site")
	return odd
}

// originScripts returns the requests of pages of several origins on one connection.
func originScripts() []script {
	var scripts []script
	for _, header := range [][]string{
		nil, {"Origin: " + appPage}, {"Origin: " + localPage}, {"Origin: " + evilPage}, {"Origin: null"}, {"Origin:"}, {"Origin: http://HOST"},
		{"Origin: " + strings.ToUpper(appPage)}, {"Origin: " + appPage + "/"}, {"Origin: " + appPage + ", " + evilPage}, {"Origin: " + appPage + " "}, {"Origin:\t" + appPage},
		{"Origin: " + appPage, "Origin: " + evilPage}, {"Origin: " + evilPage, "Origin: " + appPage}, {"ORIGIN: " + appPage, "Sec-Fetch-Site: cross-site"},
		{"Origin: " + localPage, "Sec-Fetch-Site: same-site"}, {"Origin: " + evilPage, "Sec-Fetch-Site: cross-site"}, {"Origin: " + evilPage, "Sec-Fetch-Site: same-origin"}, {"Sec-Fetch-Site: cross-site"},
	} {
		sc := scene{
			name: "pages: " + strings.Join(header, ", "),
			odd: get(pollPath, header...) + get(pollPath, "Origin: "+localPage) + post("1", header...) + get("/v1/poll?topic=TOPIC.stateless@oldest", header...) +
				get("/v1/sessions/none/poll?ack=0", header...) + get("/v1/topics", header...) + post("5", append(slices.Clone(header), "Content-Type: nonsense/")...) +
				request("OPTIONS "+publishPath, "", append(slices.Clone(header), "Access-Control-Request-Method: POST")...) + pollZero,
		}
		for _, first := range []string{"", get(pollPath, header...), post(`{"first":1}`, "Origin: "+appPage), pollZero} {
			sc.first = first
			scripts = append(scripts, func(string) scene { return sc })
		}
	}
	return scripts
}

func oddTargets() map[string]string {
	odd := map[string]string{}
	for _, target := range []string{
		"http://HOST" + pollPath, "http://other" + pollPath, "HTTP://HOST" + pollPath, "https://HOST" + pollPath, "//HOST" + pollPath, "*", "", "?", "#", "/", "//", "/v1", "/v1/", "/v1/poll", "/v1/poll?",
		pollPath + "#", pollPath + "#fragment", pollPath + "?", "/" + pollPath, "/." + pollPath, "/../" + pollPath, "/v1/sessions/SESSION/poll/?ack=0", "/v1//sessions/SESSION/poll?ack=0",
		"/v1/sessions/SESSION/%70oll?ack=0", "/v1/%73essions/SESSION/poll?ack=0", "/v1/sessions/SESSIO%4E/poll?ack=0", "/v1/sessions%2FSESSION/poll?ack=0", "/v1/sessions/SESSION/poll%3Fack=0", "/V1/sessions/SESSION/poll?ack=0", "/v1/sessions//poll?ack=0",
		"/v1/sessions/x/poll?ack=0", "/v1/sessions/" + strings.Repeat("x", 5000) + "/poll?ack=0", "/v1/sessions/_aaaaaaaaaaaaaaaaaaaaaa/poll?ack=0", "/v1/sessions/SESSION./poll?ack=0", "/v1/sessions/SESSION/poll;x?ack=0", "/v1/sessions/\xc3\xa9/poll?ack=0", "/v1/sessions/\xff/poll?ack=0",
		"/v1/sessions/SESSION/poll", "/v1/sessions/SESSION/poll?", "/v1/sessions/SESSION/poll?ack", "/v1/sessions/SESSION/poll?ack=", "/v1/sessions/SESSION/poll?ack=1", "/v1/sessions/SESSION/poll?ack=2", "/v1/sessions/SESSION/poll?ack=3", "/v1/sessions/SESSION/poll?ack=-1", "/v1/sessions/SESSION/poll?ack=+1",
		"/v1/sessions/SESSION/poll?ack=00", "/v1/sessions/SESSION/poll?ack=0x0", "/v1/sessions/SESSION/poll?ack=1e0", "/v1/sessions/SESSION/poll?ack=1_0", "/v1/sessions/SESSION/poll?ack=9007199254740991", "/v1/sessions/SESSION/poll?ack=9007199254740992", "/v1/sessions/SESSION/poll?ack=18446744073709551616",
		"/v1/sessions/SESSION/poll?ack=0&ack=0", "/v1/sessions/SESSION/poll?%61ck=0", "/v1/sessions/SESSION/poll?ack=%30", "/v1/sessions/SESSION/poll?ack=%3", "/v1/sessions/SESSION/poll?ack=0;mode=single", "/v1/sessions/SESSION/poll?ACK=0", "/v1/sessions/SESSION/poll?&&ack=0&", "/v1/sessions/SESSION/poll?ack==0", "/v1/sessions/SESSION/poll?ack=0%20", "/v1/sessions/SESSION/poll?ack=%D9%A0",
		pollPath + "&mode=single", pollPath + "&mode=batch", pollPath + "&mode=multiple", pollPath + "&mode=", pollPath + "&mode", pollPath + "&mode=BATCH", pollPath + "&mode=none", pollPath + "&mode=batch&mode=batch", pollPath + "&mode=b%61tch",
		pollPath + "&format=json", pollPath + "&format=cbor", pollPath + "&format=", pollPath + "&format", pollPath + "&format=json&format=json", pollPath + "&_=1", pollPath + "&unknown", pollPath + "&=", pollPath + "&a=b=c", pollPath + "&_=%zz", pollPath + "&_=+", pollPath + "&_=\xff", pollPath + "&_=\"", pollPath + "&_=<>", pollPath + "&_=;",
		"/v1/poll?topic=TOPIC.stateless", "/v1/poll?topic=TOPIC.stateless@oldest", "/v1/poll?topic=TOPIC.stateless@k3:17", "/v1/poll?topic=TOPIC.stateless%40k3%3A17", "/v1/poll?topic=TOPIC.stateless@oldest&topic=TOPIC.polled@oldest", "/v1/poll?topic=TOPIC.stateless@oldest&topic=TOPIC.stateless@oldest",
		"/v1/poll?topic=", "/v1/poll?topic=@", "/v1/poll?topic=TOPIC.stateless@k3", "/v1/poll?topic=TOPIC.stateless@k3:", "/v1/poll?topic=TOPIC.stateless@K3:1", "/v1/poll?topic=TOPIC.stateless@k3:-1", "/v1/poll?topic=TOPIC.stateless@k3:99999999999999999999", "/v1/poll?topic=a..b@oldest", "/v1/poll?topic=_x@oldest", "/v1/poll?topic=TOPIC.new", "/v1/poll?ack=0&topic=TOPIC.stateless@oldest&mode=single",
		"/v1/poll?" + strings.Repeat("topic=TOPIC.stateless@oldest&", 200), "/v1/poll?topic=TOPIC.none@k3:0",
	} {
		odd["GET "+target[:min(len(target), 90)]] = get(target)
	}
	for _, target := range []string{
		publishPath + "?ttl=60", publishPath + "?ttl=0", publishPath + "?ttl=-1", publishPath + "?ttl=1.5", publishPath + "?ttl=31536001", publishPath + "?ttl=60&ttl=60", publishPath + "?key=k", publishPath + "?key=", publishPath + "?key=%ff", publishPath + "?key=" + strings.Repeat("k", 1000), publishPath + "?key=a&key=b", publishPath + "?tll=1", publishPath + "?", publishPath + "?&", publishPath + "?k%65y=k", publishPath + "?key=a+b", publishPath + "?key=\xc3\xa9", publishPath + "?key=%22%5C%00",
		publishPath + "/", "/" + publishPath, "/v1/topics/TOPIC.published/message", "/v1/topics/TOPIC%2Epublished/messages", "/v1/topics/TOPIC.published%2Fmessages", "/v1/topics/TOPIC..published/messages", "/v1/topics/.TOPIC/messages", "/v1/topics/TOPIC./messages", "/v1/topics//messages", "/v1/topics/_TOPIC/messages", "/v1/topics/%5FTOPIC/messages", "/v1/topics/TOPIC$/messages", "/v1/topics/TOPIC@k3:1/messages",
		"/v1/topics/TOPIC." + strings.Repeat("a.", 16) + "a/messages", "/v1/topics/TOPIC." + strings.Repeat("a", 240) + "/messages", "/v1/topics/TOPIC." + strings.Repeat("a", 256) + "/messages", "/v1/topics/TOPIC.\xc3\xa9/messages", "/v1/topics/TOPIC.x/../TOPIC.y/messages", "http://HOST" + publishPath, "http://other.example" + publishPath, "*",
	} {
		odd["POST "+target[:min(len(target), 90)]] = request("POST "+target, "1", "Content-Length: 1")
	}
	return odd
}

func oddMethods() map[string]string {
	odd := map[string]string{}
	for _, method := range []string{"HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "get", "Get", "post", "GETT", "G", "", "POLL", "GET\x00", "G(T", "\xc3\xa9"} {
		odd[method+" poll"] = request(method+" "+pollPath, "")
		odd[method+" publish"] = request(method+" "+publishPath, "1", "Content-Length: 1")
	}
	odd["POST to a poll"] = request("POST "+pollPath, "1", "Content-Length: 1")
	odd["POST of a stateless poll"] = request("POST /v1/poll", `{"topics":["a@k3:17"]}`, "Content-Length: 22")
	odd["GET of a topic's messages"] = get(publishPath)
	odd["OPTIONS *"] = request("OPTIONS *", "")
	odd["a preflight"] = request("OPTIONS "+publishPath, "", "Origin: http://evil.example", "Access-Control-Request-Method: POST")
	return odd
}

// A lie changes one chunk of bytes that a relay forwards, to the daemon or to the client.
// With cut, the relay then closes both connections.
type lie func(toDaemon, toClient string) (daemon, client string, cut bool)

// Each of the lies is one fault that a lane could have.
var lies = map[string]lie{
	"another header": func(d, c string) (string, string, bool) {
		return d, strings.Replace(c, "nosniff", "NoSniff", 1), false
	},
	"a header is missing": func(d, c string) (string, string, bool) {
		return d, strings.ReplaceAll(c, "X-Accel-Buffering: no\r\n", ""), false
	},
	"another frame": func(d, c string) (string, string, bool) {
		return d, strings.ReplaceAll(c, `"data":1`, `"data":2`), false
	},
	"another status": func(d, c string) (string, string, bool) {
		return d, strings.ReplaceAll(c, "200 OK", "201 Created"), false
	},
	"a request is served twice": func(d, c string) (string, string, bool) {
		return d + d, c, false
	},
	"a publish that is answered is lost": func(d, c string) (string, string, bool) {
		return strings.ReplaceAll(d, ".published/", ".publishes/"), strings.ReplaceAll(c, ".publishes@", ".published@"), false
	},
	"an answer is followed by the end": func(d, c string) (string, string, bool) {
		return d, c, strings.Contains(c, ".published@")
	},
	"an ack is not": func(d, c string) (string, string, bool) {
		return strings.ReplaceAll(d, "ack=0", "ack=2"), c, false
	},
	"a byte too much": func(d, c string) (string, string, bool) {
		if strings.Contains(c, ".last@") {
			c += "\n"
		}
		return d, c, false
	},
}

// relay starts a relay between clients and a daemon that tells a lie. It returns its
// address.
func relay(t *testing.T, daemon string, tell lie) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { relayConn(client, daemon, tell) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		relays.Wait()
	})
	return l.Addr().String()
}

func relayConn(client net.Conn, daemon string, tell lie) {
	defer client.Close()
	server, err := net.Dial("tcp", daemon)
	if err != nil {
		return
	}
	defer server.Close()
	var up sync.WaitGroup
	up.Go(func() {
		pass(client, server, func(text string) (string, bool) { d, _, _ := tell(text, ""); return d, false })
		_ = server.(*net.TCPConn).CloseWrite()
	})
	pass(server, client, func(text string) (string, bool) { _, c, cut := tell("", text); return c, cut })
	client.Close()
	up.Wait()
}

// pass copies until the input ends, or change ends it.
func pass(from, to net.Conn, change func(text string) (string, bool)) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		text, cut := change(string(buffer[:n]))
		if _, failed := io.WriteString(to, text); failed != nil || err != nil || cut {
			return
		}
	}
}
