package throttle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A subscriber polls one session, which that keeps alive, until it is told to stop.
// It belongs to one goroutine.
type subscriber struct {
	*asker
	ledger  *ledger
	session string
	frames  uint64 // that were had: what is acked
}

// run polls. That ctx ends is no error.
func (s *subscriber) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := s.poll(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("poll: %w", err)
		}
	}
	return nil
}

func (s *subscriber) poll(ctx context.Context) error {
	a, err := s.ask(ctx, http.MethodGet, fmt.Sprintf("/v1/sessions/%s/poll?ack=%d", s.session, s.frames), "", nil)
	if err != nil {
		return err
	}
	if a.refused {
		sleep(ctx, a.comeAgain)
		return nil
	}
	if err := a.want(http.StatusOK); err != nil {
		return err
	}
	return s.read(wire.NewDecoder(bytes.NewReader(a.body)))
}

func (s *subscriber) read(frames *wire.Decoder) error {
	for {
		c, err := frames.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case c.End != nil:
			return c.End
		case c.Gap != nil:
			s.ledger.gap(c.Gap)
		case c.Message != nil:
			err = s.ledger.message(c.Message)
		}
		if err != nil {
			return err
		}
		if c.Counts() {
			s.frames++
		}
	}
}
