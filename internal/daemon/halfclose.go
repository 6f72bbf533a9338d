package daemon

import "errors"

// CloseWrite ends what is sent and goes on to read. net/http looks for it to end
// answers to requests that it does not read to their end: with a full close the
// kernel may reset the connection, before the client has read why it was refused.
func (c *countingConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
