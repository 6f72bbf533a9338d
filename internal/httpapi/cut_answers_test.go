package httpapi

import (
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Some browsers report a body that was cut as complete. Wherever a history, or a poll with
// hello, is cut, a client that follows PROTOCOL.md, Cut answers, notices.
func TestAClientNoticesWhereverAnAnswerIsCut(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		t.Run(string(way), func(t *testing.T) {
			k := serveLane(t, way, lanetest.Settings{Broker: broker.Config{HistoryAge: time.Hour}}, nil)
			epoch := k.fill("one", lanetest.Long(2000), "three")
			for range 30 {
				_, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "chunked"}, Type: "text/plain", Data: []byte(lanetest.Long(4000))}, 0, time.Now())
				require.NoError(t, err)
			}
			for target, counted := range map[string]int{
				"/v1/topics/a/messages?":                          3,
				"/v1/topics/a/messages?limit=2":                   2,
				"/v1/topics/a/messages?after=a@k3:17":             4, // a gap first
				"/v1/topics/a/messages?after=a@" + epoch + ":3":   0,
				"/v1/topics/chunked/messages?":                    30,
				"/v1/topics/chunked/messages?newest=25":           25,
				"/v1/topics/a/messages?newest=2":                  2,
				"/v1/topics/a/messages?before=a@" + epoch + ":3":  2,
				"/v1/topics/a/messages?before=a@k3:17":            1, // the gap alone
				"/v1/poll?topic=a@newest-2":                       2,
				"/v1/poll?topic=a@oldest":                         3,
				"/v1/poll?topic=a@oldest&mode=single":             1,
				"/v1/poll?topic=a@k3:17&hello=true":               4,
				"/v1/poll?topic=a":                                0,
				"/v1/poll?topic=a&mode=single":                    0,
				"/v1/poll?topic=a@" + epoch + ":2&hello=true":     1,
				"/v1/poll?topic=never&topic=a@" + epoch + ":3":    0,
				"/v1/poll?topic=chunked@oldest&topic=a@oldest":    33,
				"/v1/poll?topic=a@" + epoch + ":3&hello=true&_=1": 0,
			} {
				for _, format := range []string{"json", "cbor"} {
					for _, headers := range []string{"", lanetest.TakesGzip} {
						k.wantCutsNoticed(target+"&format="+format, counted, headers)
					}
				}
			}
		})
	}
}

// wantCutsNoticed cuts the body of an answer at each byte, or of a long one at each border of
// a chunk and around it, and at a sample of bytes.
func (k *kit) wantCutsNoticed(target string, counted int, headers string) {
	k.Helper()
	raw := k.answerTo(target, headers)
	text, isPacked := packed(k.TB, raw)
	frames, isWhole := readByTheRule(target, text)
	require.True(k, isWhole, target)
	require.Equal(k, counted, frames, target)

	body, borders := unchunked(k.TB, raw)
	require.Equal(k, strings.Contains(target, "/topics/chunked/"), len(borders) > 1, "%s: a short answer is not chunked", target)
	cuts := []int{0, len(body) - 1}
	for _, border := range borders {
		cuts = append(cuts, border-1, border, border+1)
	}
	step := exhaustive.Step(127)
	if len(body) > 4096 {
		step *= len(body)/50 + 1
	}
	for at := 0; at < len(body); at += step {
		cuts = append(cuts, at)
	}
	for _, at := range cuts {
		if at < 0 || at >= len(body) {
			continue
		}
		arrived := body[:at]
		if isPacked {
			arrived = unpacked(arrived)
		}
		_, isWhole := readByTheRule(target, arrived)
		require.Equal(k, arrived == text, isWhole, "%s %s: cut at %d of %d bytes", target, headers, at, len(body))
		require.Equal(k, isPacked && at >= len(body)-10, isWhole, "only the trailer of gzip is dispensable: %s", target)
	}
}

// readByTheRule reads what has arrived of an answer, and returns how many messages and gaps
// it has, and whether the client may take it for whole.
func readByTheRule(target, text string) (counted int, isWhole bool) {
	next := wire.NewDecoder(strings.NewReader(text)).Next
	if strings.Contains(target, "format=cbor") {
		next = wire.NewCBORDecoder(strings.NewReader(text)).Next
	}
	announced := -1
	for {
		switch c, err := next(); {
		case err != nil:
			return counted, errors.Is(err, io.EOF) && counted == announced
		case c.Done != nil:
			_, err := next()
			return counted, errors.Is(err, io.EOF)
		case c.Hello != nil:
			announced = *c.Hello.Frames
		case c.Counts():
			counted++
		}
	}
}

// unchunked returns the body of an answer as it was before it was cut into chunks, and where
// each chunk ends in it.
func unchunked(t testing.TB, raw string) (body string, borders []int) {
	t.Helper()
	head, rest, _ := strings.Cut(raw, "\r\n\r\n")
	if !strings.HasSuffix(head, "Transfer-Encoding: chunked") {
		return rest, nil
	}
	for {
		size, after, _ := strings.Cut(rest, "\r\n")
		n, err := strconv.ParseUint(size, 16, 32)
		require.NoError(t, err)
		if n == 0 {
			return body, borders
		}
		body, rest = body+after[:n], after[n+2:]
		borders = append(borders, len(body))
	}
}

// unpacked returns what a lenient decoder makes of the beginning of a gzip member.
func unpacked(member string) string {
	const header = 10
	text, _ := io.ReadAll(flate.NewReader(strings.NewReader(member[min(header, len(member)):])))
	return string(text)
}

// Done says where the next request begins, and whether it gets anything.
func TestAHistoryEndsWithDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{HistoryMessages: 4}})
		epoch := k.fill("1", "2", "3", "4", "5", "6") // two are evicted
		at := func(offset int) string { return fmt.Sprintf("a@%s:%d", epoch, offset) }
		for _, c := range []struct {
			query   string
			counted int
			after   int // the offset from which the next request reads
			more    bool
		}{
			{"", 4, 6, false},
			{"?limit=1", 1, 3, true},
			{"?limit=3", 3, 5, true},
			{"?limit=4", 4, 6, false},
			{"?limit=5", 4, 6, false},
			{"?limit=1&after=" + at(0), 1, 2, true}, // a gap
			{"?after=" + at(6), 0, 6, false},
			{"?limit=1&after=" + at(6), 0, 6, false},
			{"?limit=1&after=a@k3:17", 1, 2, true}, // restarted
		} {
			done := k.wantHistory("/v1/topics/a/messages"+c.query, c.counted)
			require.Equal(t, at(c.after), done.Position.String(), c.query)
			require.Equal(t, c.more, done.More, c.query)
		}

		// A topic without messages: it was only subscribed to, or emptied.
		k.Open(`{"topics":["empty"]}`)
		require.Equal(t, wire.Done{Position: wire.Position{Topic: "empty", Epoch: epoch}}, k.wantHistory("/v1/topics/empty/messages", 0))
		_, _ = k.Get("DELETE", "/v1/topics/a", "")
		emptied := wire.Done{Position: wire.Position{Topic: "a", Epoch: epoch, Offset: 7}}
		require.Equal(t, emptied, k.wantHistory("/v1/topics/a/messages", 0))
		require.Equal(t, emptied, k.wantHistory("/v1/topics/a/messages?limit=1&after="+at(3), 1))
	})
}

// Messages that expire after the last frame are a gap, so there is more.
func TestDoneSaysThatAGapFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
		k.wantOK("/v1/topics/a/messages?ttl=1", "2", lanetest.JSONType)
		time.Sleep(2 * time.Second)
		done := k.wantHistory("/v1/topics/a/messages?limit=1", 1)
		require.True(t, done.More)
		done = k.wantHistory("/v1/topics/a/messages?after="+done.Position.String(), 1)
		require.Equal(t, wire.Done{Position: wire.Position{Topic: "a", Epoch: done.Position.Epoch, Offset: 2}}, done)
	})
}

// Messages that are published while a long history is read belong to it, up to its limit.
func TestDoneOfAHistoryThatGrowsWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		publish := func(n int) {
			k.fill(slices.Repeat([]string{strings.Repeat("x", 10_000)}, n)...)
		}
		publish(30)
		for limit, wantMore := range map[int]bool{30: true, 31: true, 1000: false} {
			conn, err := k.Dial()
			require.NoError(t, err)
			_, err = fmt.Fprintf(conn, "GET /v1/topics/a/messages?limit=%d HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", limit)
			require.NoError(t, err)
			synctest.Wait()
			publish(10)
			answer, err := io.ReadAll(conn)
			require.NoError(t, err)
			conn.Close()
			text, _ := packed(t, string(answer))
			counted, isWhole := readByTheRule("", text)
			require.True(t, isWhole)
			if limit < 1000 {
				require.Equal(t, limit, counted)
			}
			require.Contains(t, text, fmt.Sprintf(`:%d","more":%t}}`, counted, wantMore))
		}
	})
}

// A history that is read backwards ends just before a position. Done says where the next
// request ends, and whether it gets anything.
func TestAHistoryIsReadBackwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{HistoryMessages: 4}})
		epoch := k.fill("1", "2", "3", "4", "5", "6") // two are evicted
		at := func(offset int) string { return fmt.Sprintf("a@%s:%d", epoch, offset) }
		for _, c := range []struct {
			query   string
			counted int
			before  int // the offset before which the next request ends
			more    bool
		}{
			{"newest=1", 1, 6, true},
			{"newest=4", 4, 3, false},
			{"newest=1000", 4, 3, false},
			{"limit=2&before=" + at(6), 2, 4, true},
			{"limit=2&before=" + at(5), 2, 3, false},
			{"before=" + at(6), 3, 3, false},
			{"before=" + at(3), 0, 3, false},
			{"before=" + at(1), 0, 1, false},
			{"before=" + at(0), 0, 0, false},
			{"before=a@k3:17", 1, 2, false}, // restarted
			{"before=" + at(7), 1, 2, false},
		} {
			done := k.wantHistory("/v1/topics/a/messages?"+c.query, c.counted)
			require.Equal(t, at(c.before), done.Position.String(), c.query)
			require.Equal(t, c.more, done.More, c.query)
		}
		k.Open(`{"topics":["empty"]}`)
		require.Equal(t, wire.Done{Position: wire.Position{Topic: "empty", Epoch: epoch}}, k.wantHistory("/v1/topics/empty/messages?newest=9", 0))
		_, _ = k.Get("DELETE", "/v1/topics/a", "")
		require.Equal(t, wire.Done{Position: wire.Position{Topic: "a", Epoch: epoch, Offset: 7}}, k.wantHistory("/v1/topics/a/messages?newest=9", 0))

		for query, code := range map[string]wire.Code{
			"newest=0":                             wire.CodeInvalidRequest,
			"newest=1001":                          wire.CodeInvalidRequest,
			"newest=5&limit=5":                     wire.CodeInvalidRequest,
			"newest=5&before=" + at(3):             wire.CodeInvalidRequest,
			"after=" + at(1) + "&newest=5":         wire.CodeInvalidRequest,
			"after=" + at(1) + "&before=" + at(3):  wire.CodeInvalidRequest,
			"before=" + at(3) + "&before=" + at(3): wire.CodeInvalidRequest,
			"before=b@" + epoch + ":3":             wire.CodeInvalidPosition,
			"before=3":                             wire.CodeInvalidPosition,
			"before=" + at(3) + "&limit=0":         wire.CodeInvalidRequest,
			"before=" + at(3) + "&limit=1001":      wire.CodeInvalidRequest,
		} {
			k.WantProblem(code, "GET", "/v1/topics/a/messages?"+query, "")
		}
		k.WantProblem(wire.CodeTopicUnknown, "GET", "/v1/topics/none/messages?newest=5", "")
	})
}

// A page that is read piece by piece ends where it ended when the request came, and a gap
// announces what is evicted or deleted meanwhile.
func TestAPageWhoseHistoryChangesWhileItIsRead(t *testing.T) {
	for change, wants := range map[string]func(t *testing.T, counted int, text string){
		"publish": func(t *testing.T, counted int, text string) {
			require.Equal(t, 20, counted)
			require.Contains(t, text, `:11","more":true}}`)
		},
		"delete": func(t *testing.T, counted int, text string) {
			require.Less(t, counted, 20)
			require.Contains(t, text, `"reason":"deleted"`)
			require.Contains(t, text, `:11","more":false}}`)
		},
	} {
		t.Run(change, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, lanetest.Settings{})
				publish := func(n int) { k.fill(slices.Repeat([]string{strings.Repeat("x", 10_000)}, n)...) }
				publish(30)
				conn, err := k.Dial()
				require.NoError(t, err)
				_, err = io.WriteString(conn, "GET /v1/topics/a/messages?newest=20 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
				require.NoError(t, err)
				synctest.Wait()
				if change == "publish" {
					publish(10)
				} else {
					_, _ = k.Get("DELETE", "/v1/topics/a", "")
				}
				answer, err := io.ReadAll(conn)
				require.NoError(t, err)
				conn.Close()
				text, _ := packed(t, string(answer))
				counted, isWhole := readByTheRule("", text)
				require.True(t, isWhole)
				wants(t, counted, text)
			})
		})
	}
}

// wantHistory reads a history with that number of messages and gaps, and returns its done.
func (k *kit) wantHistory(target string, counted int) (done wire.Done) {
	k.Helper()
	resp := k.Do("GET", target, "")
	defer resp.Body.Close()
	require.Equal(k, 200, resp.StatusCode)
	require.Positive(k, resp.ContentLength, "a short answer has its length")
	for d := wire.NewDecoder(resp.Body); ; {
		c, err := d.Next()
		require.NoError(k, err, "%s has no done", target)
		if c.Done != nil {
			_, err = d.Next()
			require.ErrorIs(k, err, io.EOF)
			require.Zero(k, counted, "%s: so many frames are missing", target)
			return *c.Done
		}
		require.True(k, c.Counts())
		counted--
	}
}
