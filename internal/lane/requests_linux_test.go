package lane

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// refusing delays refusals of publishes.
type refusing struct {
	auth.Open
	hold time.Duration
}

func (r refusing) Identify(auth.Credentials, bool) (*auth.Grant, error) {
	return nil, &limit.Refusal{Problem: problem.New(wire.CodeLimited, "come later", "too often"), Hold: r.hold}
}

// refuse returns a connection on which a publish was refused, and the client's side of it.
func refuse(t *testing.T, hold time.Duration) (*stage, *conn, int) {
	t.Helper()
	s := newStage(t, refusing{hold: hold})
	c, client := s.connect()
	ask(t, client, 1)
	s.hear()
	return s, c, client
}

// tick is Lane.Tick for a stage.
func (s *stage) tick(now time.Time) {
	s.Tick(now)
	s.loop.tick(now, false)
}

// The loop lists a delayed refusal exactly until the answer. Otherwise the list would keep
// connections that have left.
func TestADelayedRefusalIsListedUntilTheAnswer(t *testing.T) {
	s, c, client := refuse(t, time.Hour)
	require.Len(t, s.loop.delayed, 1)
	require.Nil(t, c.buf, "an idle connection has no buffer")
	until := s.loop.delayed[c]
	s.tick(until.Add(-time.Millisecond))
	require.Len(t, s.loop.delayed, 1)
	require.Empty(t, appendAll(t, nil, client))

	ask(t, client, 1)
	s.hear()
	require.Len(t, s.loop.delayed, 1)
	require.Empty(t, appendAll(t, nil, client), "nothing is served before")

	s.tick(until)
	require.Contains(t, string(appendAll(t, nil, client)), "HTTP/1.1 429 ")
	require.Len(t, s.loop.delayed, 1, "the next refusal has its own time")
	require.Greater(t, time.Until(s.loop.delayed[c]), 59*time.Minute)
}

func TestADelayedRefusalOfAConnectionThatLeftIsNotListed(t *testing.T) {
	s, c, client := refuse(t, time.Hour)
	require.Len(t, s.loop.delayed, 1)
	closeFD(client)
	s.hear()
	require.Equal(t, left, c.ending)
	require.Empty(t, s.loop.delayed)
}

// A drain answers the refusal early, and the client does not read yet. The delay must not
// add a second answer.
func TestADrainSendsADelayedRefusalOnce(t *testing.T) {
	s, c, client := refuse(t, time.Hour)
	until := s.loop.delayed[c]
	for errno := syscall.Errno(0); errno == 0; {
		_, errno = rawWrite(c.fd, make([]byte, 64<<10))
	}
	s.draining.Store(true)
	s.loop.each((*conn).takeBack)
	require.True(t, c.Blocked())
	s.tick(until)
	got := appendAll(t, nil, client)
	s.loop.each((*conn).takeBack) // writes the rest, and closes
	require.Equal(t, left, c.ending)
	rest := make([]byte, 4096)
	n, errno := rawRead(client, rest)
	require.Zero(t, errno)
	got = append(got, rest[:n]...)
	require.Equal(t, 1, bytes.Count(got, []byte("HTTP/1.1 ")), "%s", bytes.TrimLeft(got, "\x00"))
}

func TestARefusalWithoutDelayIsNotListed(t *testing.T) {
	s, _, client := refuse(t, 0)
	require.Empty(t, s.loop.delayed)
	require.Contains(t, string(appendAll(t, nil, client)), "HTTP/1.1 429 ")
}

// A request is served when its last byte arrives, wherever it was cut. A cut within the
// head hands the connection back.
func TestAPublishWithALateBodyIsServed(t *testing.T) {
	request := []byte("POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1")
	body := bytes.Index(request, headEnd) + len(headEnd)
	s := newStage(t, auth.Open{})
	c, client := s.connect()
	for i, part := range [][]byte{request[:body], request[body:]} {
		n, errno := rawWrite(client, part)
		require.Zero(t, errno)
		require.Equal(t, len(part), n)
		s.hear()
		require.Equal(t, i, s.published())
	}
	require.Contains(t, string(appendAll(t, nil, client)), "HTTP/1.1 200 ")
	require.Equal(t, staying, c.ending)
}

// A request that the lane cannot read to its end is handed back at once. Otherwise the
// client would wait for the rest timeout.
func TestRequestsThatAreTooLongAreHandedBackAtOnce(t *testing.T) {
	for name, text := range map[string]string{
		"a body that does not fit the buffer": "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 8192\r\n\r\n1",
		"more line ends than net/http skips":  "\r\n\r\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, auth.Open{})
			c, client := s.connect()
			ask(t, client, 1)
			s.hear()
			require.Equal(t, staying, c.ending)
			n, errno := rawWrite(client, []byte(text))
			require.Zero(t, errno)
			require.Equal(t, len(text), n)
			s.hear()
			require.Equal(t, left, c.ending)
			back, err := s.back.Accept()
			require.NoError(t, err)
			require.NoError(t, back.Close())
		})
	}
}
