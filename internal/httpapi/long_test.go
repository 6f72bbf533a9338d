package httpapi

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// longNames returns n topic names of the maximum length.
func longNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%04d.%s", i, strings.Repeat("x", wire.MaxTopicBytes-5))
	}
	return names
}

// The daemon produces a long answer at most one piece ahead of what its client reads.
func TestALongAnswerIsProducedAsItsClientReads(t *testing.T) {
	names := longNames(300)
	for _, path := range []string{"/v1/topics?limit=1000", "/v1/sessions/SESSION", "/v1/topics/a/messages?limit=1000", "many"} {
		for _, pace := range []int{1 << 10, 200 << 10} {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, lanetest.Settings{Broker: broker.Config{HistoryMessages: 1000}})
				topics := make([]wire.Start, len(names))
				for i, name := range names {
					topics[i].Topic = name
				}
				body, err := json.Marshal(wire.OpenRequest{Topics: topics})
				require.NoError(t, err)
				session := k.Open(string(body)).Session
				for range 1000 {
					_, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte(`"` + strings.Repeat("y", 300) + `"`)}, 0, time.Now())
					require.NoError(t, err)
				}
				request := "GET " + strings.ReplaceAll(path, "SESSION", session) + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
				if path == "many" {
					items := "[" + strings.Repeat("1,", 999) + "1]"
					request = fmt.Sprintf("POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(items), items)
				}
				conn, err := k.Dial()
				require.NoError(t, err)
				defer conn.Close()
				_, err = io.WriteString(conn, request)
				require.NoError(t, err)
				synctest.Wait()
				answer, read := &strings.Builder{}, make([]byte, pace)
				for {
					unread := k.Parts.Broker.Memory().Of(memory.Unread)
					require.LessOrEqual(t, unread, int64(65<<10), "%s after %d bytes", path, answer.Len())
					require.LessOrEqual(t, k.Parts.Broker.Memory().Of(memory.Queued), int64(200<<10), "%s after %d bytes", path, answer.Len())
					n, err := conn.Read(read)
					answer.Write(read[:n])
					if errors.Is(err, io.EOF) {
						break
					}
					require.NoError(t, err)
					synctest.Wait()
				}
				resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer.String())), nil)
				require.NoError(t, err)
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				require.NoError(t, err)
				require.Greater(t, len(text), 100<<10, path)
				require.Equal(t, []string{"chunked"}, resp.TransferEncoding, path)
				k.wantWhole(path, text, names)
			})
		}
	}
}

// wantWhole requires that nothing is missing from a long answer.
func (k *kit) wantWhole(path string, text []byte, names []string) {
	k.Helper()
	switch {
	case strings.HasPrefix(path, "/v1/topics?"):
		var list wire.TopicList
		require.NoError(k, json.Unmarshal(text, &list))
		require.Len(k, list.Topics, len(names)+1)
		require.Equal(k, names[0], list.Topics[0].Topic)
		require.Empty(k, list.Next)
	case strings.HasPrefix(path, "/v1/sessions"):
		var state wire.SessionState
		require.NoError(k, json.Unmarshal(text, &state))
		require.Len(k, state.Subscriptions, len(names))
		require.Equal(k, names[299], state.Subscriptions[299].Topic)
	case path == "many":
		var results []wire.PublishResult
		require.NoError(k, json.Unmarshal(text, &results))
		require.Len(k, results, 1000)
	default:
		require.Equal(k, 1001, strings.Count(string(text), "\n"), "and done")
		require.Contains(k, string(text), ":1000\"")
	}
}

// The pieces in which a page of topics is produced do not change its length or its next.
func TestAPageOfTopicsHasItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for i := range 130 {
			k.wantOK(fmt.Sprintf("/v1/topics/t%03d/messages", i), "1", lanetest.JSONType)
		}
		for _, c := range []struct {
			limit, n int
			next     string
		}{{1, 1, "t000"}, {64, 64, "t063"}, {65, 65, "t064"}, {128, 128, "t127"}, {130, 130, ""}, {200, 130, ""}} {
			resp := k.Do("GET", fmt.Sprintf("/v1/topics?limit=%d", c.limit), "")
			var list wire.TopicList
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&list))
			resp.Body.Close()
			require.Len(t, list.Topics, c.n)
			require.Equal(t, c.next, list.Next, c.limit)
			require.Positive(t, resp.ContentLength, "a short answer has its length")
		}
	})
}

func TestALongHistoryInGzipIsOneMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for i := range 100 {
			k.wantOK("/v1/topics/a/messages", fmt.Sprintf(`"%d%s"`, i, strings.Repeat("x", (i%2)*5000)), lanetest.JSONType)
		}
		_, plain := k.Get("GET", "/v1/topics/a/messages", "")
		resp := k.Do("GET", "/v1/topics/a/messages", "", "Accept-Encoding: gzip")
		defer resp.Body.Close()
		require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
		body := bufio.NewReader(resp.Body)
		member, err := gzip.NewReader(body)
		require.NoError(t, err)
		member.Multistream(false)
		text, err := io.ReadAll(member)
		require.NoError(t, err)
		require.Equal(t, plain, string(text))
		_, err = body.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	})
}
