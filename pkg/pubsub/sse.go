package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// maxEventsQueryBytes is the longest query that events are asked for with: common
// proxies and servers take a request line of 8 KiB, and the path is in it too.
const maxEventsQueryBytes = 7 << 10

var errPaces = errors.New("the transport sse supports only one max_rate for all topics")

// askForEvents opens the stream of events that comes after starts, which the URL
// names all: an EventSource cannot say more, and neither do we.
func (s *stateless) askForEvents(life context.Context, starts []wire.Start, limits wire.Limits) (*answer, error) {
	req, err := s.eventsRequest(life, starts)
	if err != nil {
		return nil, err
	}
	return s.client.ask(life, s.client.send, req, Stream, s.encoding, limits), nil
}

func (s *stateless) eventsRequest(ctx context.Context, starts []wire.Start) (*http.Request, error) {
	query := url.Values{"r": {strconv.FormatUint(rand.Uint64(), 36)}} // against caches
	leaveOut(query, s.except)
	every, err := paceOf(starts)
	if err != nil {
		return nil, &hopelessError{err}
	}
	if every > 0 {
		query.Set("max_rate", "1/"+every.String())
	}
	for _, start := range starts {
		query.Add("topic", start.String())
	}
	if n := len(query.Encode()); n > maxEventsQueryBytes {
		return nil, &hopelessError{fmt.Errorf("%d topics and positions make a URL of %d bytes, and the transport sse allows at most %d: use another transport", len(starts), n, maxEventsQueryBytes)}
	}
	return s.client.request(ctx, http.MethodGet, "v1/sse", query, nil)
}

// paceOf returns the pace that all starts have.
func paceOf(starts []wire.Start) (every time.Duration, err error) {
	for i, start := range starts {
		if i > 0 && start.Every != every {
			return 0, errPaces
		}
		every = start.Every
	}
	return every, nil
}
