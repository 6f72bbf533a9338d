package client

import "net/url"

// Mercure has one URL: GET with a topic is an event stream, POST with a form
// publishes. A topic is an IRI.

const mercureHub = "/.well-known/mercure"

func mercureTopic(topic string) string { return url.QueryEscape("http://loadtest/" + topic) }

func newMercure(k *Kit, o Options) Dialect {
	shared := &sseKit{kit: k}
	return &foreignDialect{
		Kit: k,
		subscriber: func(number int, topic string, events Events) Machine {
			request := EventSource(o.Authority, mercureHub+"?topic="+mercureTopic(topic))
			return shared.newClient(number, topic, request, rawDecoder{}, true, events)
		},
		form: func(topic string) PublishForm {
			f := plainForm(topic, PostTo(o.Authority, mercureHub, "application/x-www-form-urlencoded", bearer(o.Token)))
			f.wrap = func(b, payload []byte) []byte {
				b = append(b, "topic="+mercureTopic(topic)+"&data="...)
				return append(b, url.QueryEscape(string(payload))...)
			}
			return f
		},
	}
}

// newSSE is for any server with a URL for each topic's event stream, and one to
// post its messages to.
func newSSE(k *Kit, o Options) Dialect {
	shared := &sseKit{kit: k}
	return &foreignDialect{
		Kit: k,
		subscriber: func(number int, topic string, events Events) Machine {
			return shared.newClient(number, topic, EventSource(o.Authority, at(o.SubscribePath, topic)), rawDecoder{}, true, events)
		},
		form: func(topic string) PublishForm {
			return plainForm(topic, PostTo(o.Authority, at(o.PublishPath, topic), o.ContentType, bearer(o.Token)))
		},
	}
}

func bearer(token string) string {
	if token == "" {
		return ""
	}
	return "Authorization: Bearer " + token + "\r\n"
}
