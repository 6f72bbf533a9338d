package loadtest

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// dialled is an event loop that does not run: it notes the connections, and what was
// sent on each.
type dialled struct {
	eventloop.Loop
	machines []eventloop.Machine
	sent     []int // by connection: how many requests
}

func (d *dialled) Now() time.Duration             { return 0 }
func (d *dialled) Usage() (eventloop.Usage, bool) { return eventloop.Usage{}, false }
func (d *dialled) Traffic() (in, out int64)       { return 0, 0 }

func (d *dialled) Dial(m eventloop.Machine) eventloop.Conn {
	d.machines = append(d.machines, m)
	d.sent = append(d.sent, 0)
	return dialledConn{d, len(d.machines) - 1}
}

type dialledConn struct {
	loop   *dialled
	number int
}

func (c dialledConn) Send([]byte) { c.loop.sent[c.number]++ }

const publishTaken = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 31\r\n\r\n" +
	`{"position":"a@k3:18","time":1}`

func newTestPool(t *testing.T, connections int) (*pool, *dialled, *[]error) {
	t.Helper()
	loop, failures := &dialled{}, &[]error{}
	kit := client.NewKit("h", client.Batch, false)
	form := client.NewPublishForm("h", "a", "text/plain")
	p := newPool(kit, loop, connections, func(int) client.PublishForm { return form })
	p.taken = func(publication, wire.Position) {}
	p.failed = func(err error) { *failures = append(*failures, err) }
	for range connections {
		p.open()
	}
	return p, loop, failures
}

func TestPublishesGoRoundAllConnections(t *testing.T) {
	p, loop, failures := newTestPool(t, 3)
	for _, m := range loop.machines {
		require.Empty(t, m.Connected(0))
	}
	for i := range 6 {
		p.publish(publication{})
		_, err := loop.machines[i%3].Receive(0, []byte(publishTaken))
		require.NoError(t, err, "the publish went over the connection that was free for the longest")
	}
	require.Equal(t, []int{2, 2, 2}, loop.sent)
	require.Empty(t, *failures)
}

func TestOnlyAConnectionInUseFailsWhenItIsClosed(t *testing.T) {
	p, loop, failures := newTestPool(t, 3)
	loop.machines[0].Connected(0)
	loop.machines[1].Connected(0)
	p.publish(publication{}) // over the first

	loop.machines[1].Closed(0, eventloop.ErrServerClosed)
	require.Empty(t, *failures, "a server may close what is free")
	require.EqualValues(t, 1, p.idleClosed)

	loop.machines[2].Closed(0, errors.New("refused"))
	require.Len(t, *failures, 1, "it was never there")
	loop.machines[0].Closed(0, io.EOF)
	require.Len(t, *failures, 2)
	require.ErrorContains(t, (*failures)[1], "unanswered")

	p.publish(publication{})
	require.Len(t, loop.machines, 4, "a closed connection is replaced when it is needed")
	require.NotEmpty(t, loop.machines[3].Connected(0))
	require.EqualValues(t, 1, p.idleClosed)
}

func TestWhatFollowsAnAnswerIsAFailure(t *testing.T) {
	p, loop, failures := newTestPool(t, 1)
	answered := 0
	p.taken = func(publication, wire.Position) { answered++ }
	loop.machines[0].Connected(0)
	p.publish(publication{})
	next, err := loop.machines[0].Receive(0, []byte(publishTaken+publishTaken))
	require.ErrorContains(t, err, "unexpected bytes")
	require.Empty(t, next)
	require.Equal(t, 1, answered, "the answer before it counts")
	loop.machines[0].Closed(0, err)
	require.Len(t, *failures, 1)
	require.Zero(t, p.idleClosed)
	require.Zero(t, p.unanswered())
}

func TestWhatWaitsForAConnectionThatEndsGetsAnother(t *testing.T) {
	p, loop, _ := newTestPool(t, 1)
	loop.machines[0].Connected(0)
	p.publish(publication{})
	p.publish(publication{sequence: 1}) // waits
	require.Equal(t, 2, p.unanswered())
	loop.machines[0].Closed(0, io.EOF)
	require.Equal(t, 1, p.unanswered())
	require.Len(t, loop.machines, 2)
	require.NotEmpty(t, loop.machines[1].Connected(0))
	loop.machines[1].Closed(0, errors.New("again"))
	require.Len(t, loop.machines, 2, "nothing waits any more")
}
