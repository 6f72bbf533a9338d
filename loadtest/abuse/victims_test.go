package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A stillLoop is a loop whose clock and network are the test's.
type stillLoop struct {
	eventloop.Loop
	now     time.Duration
	dialled []eventloop.Machine
	sent    [][]byte
}

func (l *stillLoop) Now() time.Duration             { return l.now }
func (l *stillLoop) Usage() (eventloop.Usage, bool) { return eventloop.Usage{}, true }
func (l *stillLoop) Send(b []byte)                  { l.sent = append(l.sent, append([]byte(nil), b...)) }

func (l *stillLoop) Dial(m eventloop.Machine) eventloop.Conn {
	l.dialled = append(l.dialled, m)
	return l
}

// run lets time pass in small steps.
func (l *stillLoop) run(c *crowd, d time.Duration) {
	for end := l.now + d; l.now < end; l.now += 5 * time.Millisecond {
		c.Due(l.now)
	}
}

// newStillCrowd returns victims who have their sessions, and a publisher that is
// connected.
func newStillCrowd(t *testing.T, count int) (*crowd, *stillLoop) {
	l := &stillLoop{}
	c := &crowd{loop: l, orders: make(chan task, 1), count: count, ledger: newLedger(count), topic: "a", found: nothingFound()}
	c.before, c.after = loadtest.ShortStrings()
	c.kit = client.NewDialect(client.Options{Dialect: client.Pubsubd, Authority: "x:1", ContentType: "application/json", Mode: client.Batch})
	c.publish = newBroadcaster(c)
	done := make(chan outcome, 1)
	c.orders <- task{order{Do: "open"}, done}
	l.run(c, 10*time.Millisecond)
	require.Len(t, l.dialled, count)
	for i := range count {
		c.Ready(i, wire.Position{})
	}
	l.run(c, 10*time.Millisecond)
	require.NoError(t, (<-done).err)
	l.connect()
	return c, l
}

// connect makes the publisher's connection, the last that was dialled.
func (l *stillLoop) connect() { l.publisher().Connected(l.now) }

func (l *stillLoop) publisher() eventloop.Machine { return l.dialled[len(l.dialled)-1] }

// answer is what the server says to the publish that is on its way.
func (l *stillLoop) answer(t *testing.T, status, body string) {
	_, err := l.publisher().Receive(l.now, fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body))
	require.NoError(t, err)
}

func (l *stillLoop) taken(t *testing.T, number int) {
	l.answer(t, "200 OK", fmt.Sprintf(`{"position":"a@k:%d","time":1}`, number))
}

func (c *crowd) gets(t *testing.T, victim, number int) {
	require.NoError(t, c.Message(victim, &client.Frame{Data: c.write(number)}, c.loop.Now()))
}

func (c *crowd) measure(seconds int) <-chan outcome {
	done := make(chan outcome, 1)
	c.orders <- task{order{Do: "measure", Lasts: time.Duration(seconds) * time.Second}, done}
	return done
}

func TestLatencyRunsFromWhenAMessageWasDue(t *testing.T) {
	c, l := newStillCrowd(t, 2)
	done := c.measure(1)
	l.run(c, 2200*time.Millisecond)
	l.taken(t, 1)
	l.run(c, 50*time.Millisecond)
	l.taken(t, 2)
	for _, victim := range []int{0, 1} {
		c.gets(t, victim, 1)
		c.gets(t, victim, 2)
	}
	due := c.publish.instant(2)
	l.run(c, 20*time.Millisecond)
	found := (<-done).found.(Victims)
	require.Equal(t, Deliveries{Expected: 2, Delivered: 2}, found.Deliveries)
	require.InDelta(t, (l.now - due).Seconds(), found.Latency.Quantile(0.5).Seconds(), 0.03)
	require.Greater(t, found.Lag.Quantile(1), 150*time.Millisecond, "the answer before it kept it from being sent")
}

func TestWhatDoesNotComeInTimeIsLost(t *testing.T) {
	c, l := newStillCrowd(t, 3)
	done := c.measure(1)
	l.run(c, 1500*time.Millisecond)
	l.taken(t, 1)
	l.run(c, time.Second)
	l.taken(t, 2)
	c.gets(t, 0, 1)
	c.gets(t, 0, 2)
	c.gets(t, 1, 1)
	l.run(c, 2*grace)
	found := (<-done).found.(Victims)
	require.Equal(t, Deliveries{Expected: 3, Delivered: 1, Lost: 2}, found.Deliveries)
}

func TestASessionThatIsLostIsCountedAndOpenedAgain(t *testing.T) {
	c, l := newStillCrowd(t, 2)
	done := c.measure(1)
	l.run(c, 100*time.Millisecond)
	before := len(l.dialled)
	c.Closed(1, errors.New("429 limited"))
	l.run(c, comeBack+100*time.Millisecond)
	require.Len(t, l.dialled, before+1)
	l.run(c, 2*grace)
	found := (<-done).found.(Victims)
	require.Equal(t, int64(1), found.SessionsLost)
	require.Equal(t, "429 limited", found.FirstError)
}

func TestAPublishThatIsRefusedIsSentAgain(t *testing.T) {
	c, l := newStillCrowd(t, 1)
	l.run(c, 1100*time.Millisecond)
	require.Len(t, l.sent, 1)
	l.answer(t, "503 Service Unavailable", `{"code":"overloaded"}`)
	l.run(c, 50*time.Millisecond)
	require.Len(t, l.sent, 1, "not at once")
	l.run(c, retries)
	require.Len(t, l.sent, 2)
	require.Equal(t, l.sent[0], l.sent[1])
	require.Equal(t, int64(1), c.found.Refused)
	l.taken(t, 1)
	l.run(c, time.Second)
	require.Len(t, l.sent, 3)
	require.NotEqual(t, l.sent[0], l.sent[2])
}

func TestAPublisherThatIsCutOffConnectsAgain(t *testing.T) {
	c, l := newStillCrowd(t, 1)
	l.run(c, 100*time.Millisecond)
	before := len(l.dialled)
	l.publisher().Closed(l.now, eventloop.ErrServerClosed)
	l.run(c, 50*time.Millisecond)
	require.Len(t, l.dialled, before, "not at once")
	l.run(c, retries)
	require.Len(t, l.dialled, before+1)
	l.connect()
	l.run(c, time.Second)
	require.Len(t, l.sent, 1)
	require.Zero(t, c.found.Refused)
}

func TestAMessageThatIsNotOursEndsTheVictim(t *testing.T) {
	c, _ := newStillCrowd(t, 1)
	for _, payload := range []string{`"x"`, string(c.write(7))} {
		require.Error(t, c.Message(0, &client.Frame{Data: []byte(payload)}, 0), "%s", payload)
	}
}
