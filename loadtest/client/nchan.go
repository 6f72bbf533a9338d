package client

import "cmp"

// nchan (nginx) takes a message as the body of POST /pub/TOPIC, and has it on
// /sub/TOPIC by long poll, EventSource or WebSocket.

// The paths of nchan's own examples.
const (
	nchanSubscribe = "/sub/{topic}"
	nchanPublish   = "/pub/{topic}"
)

func newNchan(k *Kit, o Options, subscriber func(number int, topic, path string, events Events) Machine) Dialect {
	subscribe, publish := cmp.Or(o.SubscribePath, nchanSubscribe), cmp.Or(o.PublishPath, nchanPublish)
	return &foreignDialect{
		Kit: k,
		subscriber: func(number int, topic string, events Events) Machine {
			return subscriber(number, topic, at(subscribe, topic), events)
		},
		form: func(topic string) PublishForm {
			return plainForm(topic, PostTo(o.Authority, at(publish, topic), o.ContentType, ""))
		},
	}
}

func newNchanPoll(k *Kit, o Options) Dialect {
	shared := &pollerKit{kit: k, byIDs: true}
	return newNchan(k, o, func(number int, _, path string, events Events) Machine {
		return shared.newPoller(number, Get(o.Authority, path), events)
	})
}

func newNchanSSE(k *Kit, o Options) Dialect {
	shared := &sseKit{kit: k}
	return newNchan(k, o, func(number int, topic, path string, events Events) Machine {
		return shared.newClient(number, topic, EventSource(o.Authority, path), rawDecoder{}, true, events)
	})
}

func newNchanWS(k *Kit, o Options) Dialect {
	return newNchan(k, o, func(number int, topic, path string, events Events) Machine {
		return &socket{
			listener: listener{number: number, topic: topic, events: events, decoder: rawDecoder{}},
			request:  Upgrade(o.Authority, path),
			silent:   true,
		}
	})
}

// newFloor is the dialect of loadtest/floor, polled or streamed.
func newFloor(k *Kit, o Options, stream bool) Dialect {
	shared := &pollerKit{kit: k}
	subscriber := func(number int, topic string, events Events) Machine {
		return shared.newPoller(number, Get(o.Authority, "/poll?t="+topic), events)
	}
	if stream {
		subscriber = func(number int, topic string, events Events) Machine {
			return &streamer{
				listener: listener{number: number, topic: topic, events: events, decoder: rawDecoder{}},
				request:  Get(o.Authority, "/stream?t="+topic),
				silent:   true,
				splitter: &lineSplitter{},
				parser:   Parser{heads: &k.streams},
			}
		}
	}
	return &foreignDialect{Kit: k, subscriber: subscriber, form: func(topic string) PublishForm {
		return plainForm(topic, PostTo(o.Authority, "/pub?t="+topic, o.ContentType, ""))
	}}
}
