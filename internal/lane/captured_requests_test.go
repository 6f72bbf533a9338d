package lane_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A capture is a request as a real client sent it. The README in captureDir explains its
// placeholders.
type capture struct {
	name string // for example chromium-poll
	text string
}

const captureDir = "testdata"

// captures reads all captures, sorted by name.
func captures(t testing.TB) []capture {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(captureDir, "captured", "*.http"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	all := make([]capture, len(paths))
	for i, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		head, _, whole := strings.Cut(string(text), "\r\n\r\n")
		require.True(t, whole && strings.Count(head, "\n") == strings.Count(head, "\r\n"), "%s: an editor took its CRLF away", path)
		all[i] = capture{name: strings.TrimSuffix(filepath.Base(path), ".http"), text: string(text)}
	}
	return all
}

func (c capture) publishes() bool { return strings.HasPrefix(c.text, "POST ") }
func (c capture) once() bool      { return strings.Contains(c.text, "\r\nIdempotency-Key: ") }
func (c capture) stateless() bool { return strings.HasPrefix(c.text, "GET /v1/poll?") }

// Topics of the captures: one for publishes, one for polls without a session.
const (
	capturedPublishPath = "/v1/topics/a.b/messages"
	capturedPollTopic   = "a@k3:17"
)

// with replaces the capture's topics.
func (c capture) with(published, polled string) string {
	return strings.NewReplacer(
		capturedPublishPath, "/v1/topics/"+published+"/messages",
		"topic="+capturedPollTopic, "topic="+polled+"@k3:17",
	).Replace(c.text)
}

// of replaces the placeholders for host and session.
func of(request, host, session string) string {
	return strings.NewReplacer("HOST", host, "SESSION", session).Replace(request)
}
