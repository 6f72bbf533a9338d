package lane

import (
	"net"

	"github.com/pubsubd/pubsubd/internal/listen"
)

// Join has the lane read a connection from its first byte on, which net/http does otherwise. It
// returns false if the lane cannot take the connection.
func (l *Lane) Join(nc net.Conn) bool {
	c := l.adopt(listen.Of(nc))
	if c == nil {
		return false
	}
	_ = nc.Close() // c.fd keeps the connection open
	c.begin(func(*conn) {})
	return true
}
