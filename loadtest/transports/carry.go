package transports

import "fmt"

// A carry keeps the beginning of something whose end has not come. What is fed to it
// in pieces of any size, take sees in whole things: it returns the length of the one
// that the bytes begin with, or 0 if that is not all there.
type carry []byte

// Bounds of what is carried, and how much of what follows is looked at together with
// it: copying all of it would cost more than reading.
const (
	mostCarried = 1 << 20
	carryStep   = 2 << 10
)

// feed takes b, which follows all that was fed before.
func (c *carry) feed(b []byte, take func([]byte) (int, error)) error {
	b, err := c.finish(b, take)
	for err == nil && len(b) > 0 {
		var n int
		if n, err = take(b); n == 0 && err == nil {
			*c = append(*c, b...)
			return nil
		}
		b = b[n:]
	}
	return err
}

// finish adds from b to what is carried until that is whole, and returns the rest of
// b.
func (c *carry) finish(b []byte, take func([]byte) (int, error)) ([]byte, error) {
	for len(*c) > 0 && len(b) > 0 {
		before := len(*c)
		*c = append(*c, b[:min(len(b), carryStep)]...)
		n, err := take(*c)
		switch {
		case err != nil:
			return nil, err
		case n == 0 && len(*c) > mostCarried:
			return nil, fmt.Errorf("frame %.80q is longer than %d bytes", *c, mostCarried)
		case n == 0:
			b = b[len(*c)-before:]
		default:
			b = b[n-before:]
			*c = (*c)[:0]
		}
	}
	return b, nil
}
