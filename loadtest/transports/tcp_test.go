package transports

import (
	"bytes"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// serveTCP serves the topics of a fakeServer on a TCP port of their own, until the
// test ends.
func (s *fakeServer) serveTCP(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { s.push(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	return l.Addr().String()
}

// push sends hello, and then what there is of the topic asked for, and what comes,
// until the client leaves.
func (s *fakeServer) push(conn net.Conn) {
	defer conn.Close()
	request := make([]byte, 1000)
	n, _ := conn.Read(request)
	start, err := wire.ParseStart(string(bytes.TrimPrefix(request[:n], []byte("\xa1\x66topics\x81\x78"))[1:]))
	if err != nil {
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = conn.Read(request)
	}()
	_, _ = conn.Write([]byte(others[items].hello))
	for sent := int(start.After); ; {
		frames, more := s.after(start.Topic, sent)
		sent += len(frames)
		for _, f := range frames {
			c, _ := wire.ParseLine([]byte(f[:len(f)-1]))
			if _, err := conn.Write(wire.Content{Message: c.Message}.AppendCBOR(nil)); err != nil {
				return
			}
		}
		select {
		case <-more:
		case <-gone:
			return
		}
	}
}

func TestTheTCPPort(t *testing.T) {
	s := &fakeServer{}
	cfg := Default()
	cfg.Target, cfg.TargetTCP = startFake(t, s), s.serveTCP(t)
	cfg.Messages, cfg.Repeats, cfg.Clients, cfg.Transports = 1500, 1, 2, []string{TCP}
	r, err := Run(t.Context(), cfg, silent{})
	require.NoError(t, err)
	require.Zero(t, r.ExitCode, "%v %v", r.Failed, r.Missed)
	require.Len(t, r.Rows, 2)
	for _, row := range r.Rows {
		require.Equal(t, CBOR, row.Format)
		require.Positive(t, row.PerSecond.Mean)
		require.InDelta(t, 236, row.BytesIn, 10)
	}
}
