package pubsub

import (
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A reply says by its ref which command it answers; one without tells of a command that
// we did not send.
func TestRepliesToOthersAreNotOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := wire.Position{Topic: "a", Epoch: "k3"}
		forbidden := problem.New(wire.CodeForbidden, "", "not you")
		c, err := New("http://daemon", WithTCPAddr("daemon:8082", nil), dialsTo(t, func(conn net.Conn) {
			items := cbor.NewDecoder(conn)
			var asked any
			_ = items.Decode(&asked)
			_, _ = conn.Write(wire.Content{Hello: &wire.Hello{Positions: []wire.Position{at}}}.AppendCBOR(nil))
			var c wire.Command
			if decodeItem(items, &c) != nil {
				return
			}
			other := *c.Ref + 1
			_, _ = conn.Write(wire.Content{Reply: &wire.Reply{Problem: forbidden}}.AppendCBOR(nil))
			_, _ = conn.Write(wire.Content{Reply: &wire.Reply{Ref: &other, Problem: forbidden}}.AppendCBOR(nil))
			_, _ = conn.Write(wire.Content{Reply: &wire.Reply{Ref: c.Ref, Positions: []wire.Position{{Topic: "b", Epoch: "k3", Offset: 7}}}}.AppendCBOR(nil))
			_, _ = io.Copy(io.Discard, conn)
		}))
		require.NoError(t, err)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithTransport(TCP))
		wantChange(t, s, []wire.Start{FromNow("b")}, nil, "b@k3:7")
	})
}
