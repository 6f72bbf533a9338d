package lane

import "errors"

// CloseWrite ends what is sent and goes on to read, as net/http does after the answer
// to a request that it does not read to its end.
func (c *prefixed) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
