package pubsub

import "fmt"

// A Transport is what a subscription's messages come over. What is delivered is the
// same with all.
type Transport string

// The transports.
const (
	Auto       Transport = "auto"      // WebSocket, else HTTPStream, else LongPoll: the first that gets through
	LongPoll   Transport = "longpoll"  // polls, in the modes Batch, Single and Multiple: gets through everything
	HTTPStream Transport = "stream"    // one answer that does not end, as of the mode Stream: if no proxy buffers it
	SSE        Transport = "sse"       // a stream of server-sent events, for proxies that know those; of few topics, without a session
	WebSocket  Transport = "websocket" // frames one way and changes of topics the other, on one connection
	TCP        Transport = "tcp"       // the same without HTTP, in CBOR; see WithTCPAddr
)

// WithTransport sets the transport. Default Auto; with a mode or Stateless, what
// those mean: HTTPStream for the mode Stream, else LongPoll.
//
// Auto goes on to the next transport when the daemon, or a proxy, refuses one in a way that
// waiting does not mend, or when nothing has come of it within 5 s. What worked is
// kept, until it is refused so itself. See Subscription.Transport for which it is.
func WithTransport(t Transport) SubscribeOption {
	return func(o *subscribeOptions) { o.transport = t }
}

// resolve says what was left open: the transport by the mode, or the other way round.
func (o *subscribeOptions) resolve() error {
	streams := o.mode == Stream
	switch o.transport {
	case "":
		o.transport = o.implied()
	case Auto, LongPoll:
		if streams {
			return fmt.Errorf("the mode %q is not one of the transport %q: leave one of the two out", o.mode, o.transport)
		}
	case HTTPStream, SSE, WebSocket, TCP:
		if o.mode != "" && !(streams && o.transport == HTTPStream) {
			return fmt.Errorf("the transport %q has no modes: leave %q out", o.transport, o.mode)
		}
	default:
		return fmt.Errorf("there is no transport %q", o.transport)
	}
	if o.mode == "" {
		o.mode = DefaultMode
	}
	o.stateless = o.stateless || o.transport == SSE
	return o.resolveFormat()
}

func (o *subscribeOptions) implied() Transport {
	switch {
	case o.mode == Stream:
		return HTTPStream
	case o.mode != "" || o.stateless:
		return LongPoll
	}
	return Auto
}

// by returns the options of a stay by a transport.
func (o subscribeOptions) by(t Transport) subscribeOptions {
	o.transport = t
	if t != LongPoll {
		o.mode = Stream
	}
	return o
}

// ladder returns the transports to be tried, in order.
func (o *subscribeOptions) ladder() []Transport {
	if o.transport == Auto {
		return []Transport{WebSocket, HTTPStream, LongPoll}
	}
	return []Transport{o.transport}
}
