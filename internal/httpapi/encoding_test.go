package httpapi

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// twin serves the same topics and sessions through net/http alone.
func (k *kit) twin() *kit {
	cfg := k.Parts
	cfg.Lane = lane.Off
	twin := &kit{Kit: &lanetest.Kit{TB: k.TB, Parts: cfg}}
	twin.serve()
	return twin
}

// fill publishes texts to topic a and returns the topic's epoch.
func (k *kit) fill(texts ...string) (epoch string) {
	k.Helper()
	for _, text := range texts {
		published, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Type: "text/plain", Data: []byte(text)}, 0, time.Now())
		require.NoError(k, err)
		epoch = published.Position.Epoch
	}
	return epoch
}

var dateLine = regexp.MustCompile(`Date: [^\r]*\r\n`)

// answerTo sends a request twice on its own connection and returns the second answer
// without its date. With a lane, the lane answers the second request.
func (k *kit) answerTo(target string, headers ...string) (raw string) {
	k.Helper()
	conn, err := k.Dial()
	require.NoError(k, err)
	defer conn.Close()
	require.NoError(k, conn.SetDeadline(time.Now().Add(time.Minute)))
	var read strings.Builder
	in := bufio.NewReader(io.TeeReader(conn, &read))
	for range 2 {
		read.Reset()
		_, err = io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: h\r\n"+strings.Join(headers, "")+"\r\n")
		require.NoError(k, err)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(k, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(k, err)
		require.NoError(k, resp.Body.Close())
	}
	return dateLine.ReplaceAllString(read.String(), "")
}

// packed returns the decoded body of an answer. ok reports whether the body was one gzip
// member.
func packed(t testing.TB, raw string) (body string, ok bool) {
	t.Helper()
	head, body, _ := strings.Cut(raw, "\r\n\r\n")
	require.Contains(t, head, "200 OK")
	if strings.HasSuffix(head, "Transfer-Encoding: chunked") {
		whole, err := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(body)))
		require.NoError(t, err)
		body = string(whole)
	} else {
		require.Contains(t, head, fmt.Sprintf("Content-Length: %d\r\n", len(body)))
	}
	if !strings.Contains(head, "Content-Encoding: gzip\r\n") {
		return body, false
	}
	rest := strings.NewReader(body)
	r, err := gzip.NewReader(rest)
	require.NoError(t, err)
	r.Multistream(false) // browsers stop after the first member
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Zero(t, rest.Len())
	return string(text), true
}

// The lane and net/http produce the same bytes. A decompressed answer equals the
// uncompressed one.
func TestPollsAreAnsweredInGzipAlike(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Channel} {
		t.Run(string(way), func(t *testing.T) {
			k := serveLane(t, way, lanetest.Settings{
				Origins: []string{"https://app.example", "https://other.example"},
				Broker:  broker.Config{HistoryAge: time.Hour}, // no message expires during the test
			}, nil)
			twin := k.twin()
			epoch := k.fill(lanetest.Long(2000), "short", lanetest.Long(90_000), "shorter", "short again", lanetest.Long(3000))
			poll := "/v1/sessions/" + k.Open(`{"topics":["a@oldest"]}`).Session + "/poll?ack=0"
			for target, whole := range map[string]bool{
				poll:                                                          true,
				poll + "&mode=single":                                         true,
				poll + "&_=1":                                                 true,
				"/v1/poll?topic=a@" + epoch + ":0":                            true,
				"/v1/poll?topic=a@" + epoch + ":5":                            true, // one frame, whose answer is shared
				"/v1/poll?topic=a@" + epoch + ":2":                            true,
				"/v1/poll?topic=a@oldest":                                     true, // hello first
				"/v1/poll?topic=a@oldest&mode=single":                         true,
				"/v1/poll?topic=a@k3:17":                                      true, // a gap first
				"/v1/poll?mode=single&topic=a@" + epoch + ":1":                false,
				"/v1/topics/a/messages":                                       true,
				"/v1/topics/a/messages?limit=1&after=a@" + epoch + "%3A1":     false,
				"/v1/topics/a/messages?limit=1&after=a@" + epoch + "%3A2":     true,
				"/v1/topics/a/messages?after=a@" + epoch + "%3A6":             false, // no messages
				"/v1/openapi.yaml":                                            false, // long, but without frames
				"/v1/poll?topic=a@" + epoch + ":0&format=json&mode=batch&_=1": true,
			} {
				for _, origin := range []string{"", "Origin: https://app.example\r\n", "Origin: https://other.example\r\n"} {
					plain, got := k.answerTo(target, origin), k.answerTo(target, origin+lanetest.TakesGzip)
					require.Equal(t, twin.answerTo(target, origin), plain, target)
					require.Equal(t, twin.answerTo(target, origin+lanetest.TakesGzip), got, target)
					want, isPacked := packed(t, plain)
					require.False(t, isPacked)
					text, isPacked := packed(t, got)
					require.Equal(t, whole, isPacked, target)
					require.Equal(t, want, text, target)
					if whole {
						require.Less(t, len(got), len(plain), target)
					}
				}
			}
		})
	}
}

// An answer in parts is not compressed, because each part must arrive without delay.
func TestAnswersInPartsAreNotCompressed(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		k := newLaneKit(t, way)
		target := "/v1/poll?mode=multiple&topic=a@" + k.fill(lanetest.Long(2000)) + ":0"
		got := k.answerTo(target, lanetest.TakesGzip)
		require.NotContains(t, got, "Content-Encoding")
		require.Equal(t, k.answerTo(target), got, way)
	}
}

// CompressionMinBytes holds to the byte. A reload applies to the next answer.
func TestMessagesAreCompressedFromTheLeastOn(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		t.Run(string(way), func(t *testing.T) {
			k := newLaneKit(t, way)
			target := "/v1/poll?topic=a@" + k.fill(lanetest.Long(2000)) + ":0"
			line, _ := packed(t, k.answerTo(target))
			for least, want := range map[int]bool{len(line): true, len(line) + 1: false, -1: false, 0: true} {
				k.Parts.Polls.Reload(transport.Config{CompressionMinBytes: least}, k.Parts.Limits)
				text, isPacked := packed(t, k.answerTo(target, lanetest.TakesGzip))
				require.Equal(t, want, isPacked, "at least %d", least)
				require.Equal(t, line, text)
			}
		})
	}
}

// A metric counts the bytes before and after compression.
func TestCompressedBytesAreCounted(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		t.Run(string(way), func(t *testing.T) {
			k := newLaneKit(t, way)
			epoch := k.fill(lanetest.Long(2000), lanetest.Long(3000))
			before, after := 0, 0
			for _, target := range []string{"/v1/poll?topic=a@" + epoch + ":0", "/v1/poll?topic=a@" + epoch + ":1", "/v1/poll?topic=a@oldest"} {
				raw := k.answerTo(target, lanetest.TakesGzip)
				text, isPacked := packed(t, raw)
				require.True(t, isPacked)
				_, body, _ := strings.Cut(raw, "\r\n\r\n")
				before, after = before+2*len(text), after+2*len(body) // answerTo sends each request twice
			}
			k.answerTo("/v1/poll?topic=a@" + epoch + ":0")
			require.Equal(t, [2]string{strconv.Itoa(before), strconv.Itoa(after)}, k.Compressed())
		})
	}
}

// The server decodes no body. Subscribers would get the bytes of gzip as the text that they
// stand for. Neither does it take a part of a body for the whole. It asks for neither body
// (Expect), on a connection of the lane as well.
func TestBodiesWithACodingAndPartsAreRefused(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		session := k.OpenA()
		onLane := func() *lanetest.Caller {
			c := k.Call()
			c.Send(lanetest.Publishing("lane.taken", "0"))
			c.WantPublished("lane.taken")
			return c
		}
		for _, target := range []string{"POST /v1/topics/a/messages", "POST /v1/messages", "POST /v1/sessions", "POST /v1/poll", "PATCH /v1/sessions/" + session} {
			refused := func(fields string, status int) (http.Header, string) {
				t.Log(target, fields)
				c := onLane()
				c.Send(target + " HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" + fields + "\r\nExpect: 100-continue\r\n\r\n")
				resp := c.Answer()
				defer resp.Body.Close()
				require.Equal(t, status, resp.StatusCode, "before the body is asked for")
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				return resp.Header, string(text)
			}
			for _, coding := range []string{"gzip", "x-gzip", "deflate", "br", "zstd", "identity, gzip", ",gzip,", "gzip\r\nContent-Encoding: identity", "identity\r\ncontent-encoding: GZIP", "none", "gzip;q=0"} {
				header, text := refused("Content-Encoding: "+coding, http.StatusUnsupportedMediaType)
				require.Equal(t, "identity", header.Get("Accept-Encoding"))
				require.Contains(t, text, `"code":"unsupported_type"`)
			}
			refused("Content-Range: bytes 0-1/4", http.StatusBadRequest)
			c := onLane()
			c.Send(target + " HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n[]")
			c.WantAnswer(http.StatusUnsupportedMediaType)
		}
		for _, coding := range []string{"", "identity", "Identity", ",", " , identity,"} {
			c := onLane()
			c.Send(strings.Replace(lanetest.Publishing("b", "1"), "Host: h\r\n", "Host: h\r\nContent-Encoding: "+coding+"\r\nContent-Transfer-Encoding: base64\r\n", 1))
			c.WantPublished("b")
		}
		c := k.Call()
		c.Send("GET /v1/topics/a HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\n\r\n")
		require.Contains(t, c.WantAnswer(http.StatusOK), `"messages":0`)
	})
}
