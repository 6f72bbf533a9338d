//go:build linux

package lane_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// File descriptors are closed and reused while other clients poll. Passers-by connect,
// perhaps send requests, and leave in every way. Some subscribers leave in the middle of
// a poll and reconnect. Every subscriber gets every message once and in order. The daemon
// closes no connection by itself.
func TestDescriptorsAreReusedWhileOthersPoll(t *testing.T) {
	const subscribers, passersBy = 24, 8
	messages := 150 / exhaustive.Step(2)
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		var subscribing, passing sync.WaitGroup
		left := make(chan struct{})
		failed := make(chan error, subscribers+passersBy)
		for i := range subscribers {
			v := visitor{kit: k, random: rand.New(rand.NewPCG(1, uint64(i))), leaves: i%2 == 0}
			session := k.OpenA()
			subscribing.Go(func() {
				if err := v.subscribe(session, messages); err != nil {
					failed <- fmt.Errorf("subscriber %d: %w", i, err)
				}
			})
		}
		for i := range passersBy {
			v := visitor{kit: k, random: rand.New(rand.NewPCG(2, uint64(i)))}
			session := k.Open(`{"topics":["nothing"]}`).Session
			passing.Go(func() {
				for {
					select {
					case <-left:
						return
					default:
					}
					if err := v.passBy(session); err != nil {
						failed <- fmt.Errorf("passer-by %d: %w", i, err)
						return
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { subscribing.Wait(); close(done) }()
		for n := 1; n <= messages; n++ {
			k.Tell(n, n, 10)
			select {
			case <-done: // every subscriber has failed
			case <-time.After(5 * time.Millisecond): // limits the publish rate
			}
		}
		<-done
		close(left)
		passing.Wait()
		close(failed)
		for err := range failed {
			require.NoError(t, err)
		}
		k.WantOnLane(0)
		require.Zero(t, k.Parked())
	})
}

// A visitor connects and leaves at random.
type visitor struct {
	*kit
	random *rand.Rand
	leaves bool // also in the middle of polls
	conn   *net.TCPConn
	reader *bufio.Reader
}

func (v *visitor) come() error {
	conn, err := v.Dial()
	if err != nil {
		return err
	}
	v.conn, v.reader = conn.(*net.TCPConn), bufio.NewReader(conn)
	return conn.SetDeadline(time.Now().Add(lanetest.Surely))
}

// leave resets the connection, half-closes it first, or just closes it.
func (v *visitor) leave() error {
	var err error
	switch v.random.IntN(3) {
	case 0:
		err = v.conn.SetLinger(0)
	case 1:
		err = v.conn.CloseWrite()
	}
	return errors.Join(err, v.conn.Close())
}

// subscribe polls until it has all the messages of topic a, each once.
func (v *visitor) subscribe(session string, messages int) error {
	if err := v.come(); err != nil {
		return err
	}
	for had := 0; had < messages; {
		err := v.conn.SetDeadline(time.Now().Add(lanetest.Surely))
		if err == nil {
			_, err = io.WriteString(v.conn, lanetest.Polling(session, had))
		}
		if err != nil {
			return err
		}
		if v.leaves && v.random.IntN(4) == 0 {
			time.Sleep(time.Duration(v.random.IntN(3000)) * time.Microsecond) // by now the poll may be read, parked or answered
			if err := errors.Join(v.leave(), v.come()); err != nil {
				return err
			}
			continue
		}
		n, err := v.readMessages(had)
		if err != nil {
			return fmt.Errorf("after message %d: %w", had, err)
		}
		had += n
	}
	return v.leave()
}

// readMessages reads one answer. Its messages must follow message number had.
func (v *visitor) readMessages(had int) (n int, err error) {
	resp, err := http.ReadResponse(v.reader, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return 0, fmt.Errorf("answered %s", text)
	}
	frames := wire.NewDecoder(resp.Body)
	for {
		content, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if content.Message == nil || int(content.Message.Position.Offset) != had+n+1 {
			return n, fmt.Errorf("got %+v instead of message %d", content, had+n+1)
		}
		n++
	}
}

// passBy publishes a few times, perhaps polls, perhaps stops in the middle of a
// request, and leaves.
func (v *visitor) passBy(session string) error {
	if err := v.come(); err != nil {
		return err
	}
	for range v.random.IntN(4) {
		if _, err := io.WriteString(v.conn, lanetest.Publishing("b", "1")); err != nil {
			return err
		}
		resp, err := http.ReadResponse(v.reader, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", resp.Status, err)
		}
	}
	last := ""
	switch v.random.IntN(4) {
	case 0:
		last = lanetest.Polling(session, 0)
	case 1:
		last = lanetest.Publishing("b", "1")[:40]
	case 2:
		last = lanetest.Polling(session, 0) + lanetest.Publishing("b", "1")
	}
	if _, err := io.WriteString(v.conn, last); err != nil {
		return err
	}
	return v.leave()
}

// One request blocks an event loop. Meanwhile more connections become ready than the loop
// takes events at a time. The loop answers all of them afterwards.
func TestAllConnectionsThatAreReadyTogetherAreServed(t *testing.T) {
	readers := max(1, runtime.GOMAXPROCS(0)/2)
	slow := &slowOnce{begun: make(chan struct{}, readers), goOn: make(chan struct{})}
	k := newLaneWith(t, lane.HandOff, lanetest.Settings{Authority: slow}, nil)
	var holding, others []*lanetest.Caller
	for range readers { // the lane assigns connections to readers in turn
		holding = append(holding, k.CallOnLane())
	}
	for range 150 * readers {
		others = append(others, k.CallOnLane())
	}
	for _, c := range holding {
		c.Send(strings.Replace(lanetest.Publishing("slow", "1"), "\r\n", "\r\nAuthorization: slow\r\n", 1))
		<-slow.begun
	}
	for _, c := range others {
		c.Send(lanetest.Publishing("b", "1"))
	}
	close(slow.goOn)
	for _, c := range others {
		c.WantPublished("b")
	}
	for _, c := range holding {
		c.WantPublished("slow")
	}
}

// slowOnce blocks in Identify for the token slow until goOn is closed.
type slowOnce struct {
	auth.Open
	begun chan struct{}
	goOn  chan struct{} // closed to unblock Identify
}

func (s *slowOnce) Identify(c auth.Credentials, verify bool) (*auth.Grant, error) {
	if c.Authorization == "slow" {
		s.begun <- struct{}{}
		<-s.goOn
	}
	return s.Open.Identify(c, verify)
}
