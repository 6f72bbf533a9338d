package pubsub

import "fmt"

// A Transport carries the messages of a subscription. The delivered messages are the same
// with all.
type Transport string

// The transports.
const (
	Auto       Transport = "auto"      // WebSocket, HTTPStream or LongPoll: the first that works
	LongPoll   Transport = "longpoll"  // polls in the modes Batch, Single and Multiple; works through every proxy
	HTTPStream Transport = "stream"    // one answer that does not end (the mode Stream), if no proxy buffers it
	SSE        Transport = "sse"       // server-sent events, for proxies that know them; for few topics, without a session
	WebSocket  Transport = "websocket" // a two-way connection
	TCP        Transport = "tcp"       // a two-way connection without HTTP, in CBOR; see WithTCPAddr
)

// WithTransport sets the transport. Default: Auto. With the mode Stream the default is
// HTTPStream; with another mode or Stateless it is LongPoll.
//
// Auto tries the next transport when the daemon or a proxy refuses one for good, or when no
// hello arrives within 5 s. It keeps the transport that worked, until that is refused, too.
// Subscription.Transport returns the present one.
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
			return fmt.Errorf("the mode %q does not work with the transport %q: omit one of them", o.mode, o.transport)
		}
	case HTTPStream, SSE, WebSocket, TCP:
		if o.mode != "" && !(streams && o.transport == HTTPStream) {
			return fmt.Errorf("the transport %q has no modes: omit %q", o.transport, o.mode)
		}
	default:
		return fmt.Errorf("unknown transport %q", o.transport)
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
