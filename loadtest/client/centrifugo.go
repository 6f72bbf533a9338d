package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Centrifugo's unidirectional transports carry the same JSON: what the client
// wants when it connects, then pushes. An empty push is a heartbeat, to which
// these transports want no answer.

// A centrifugoDecoder reads pushes. It keeps the last, since a broadcast sends
// one to everyone.
type centrifugoDecoder struct {
	text bool // payloads are plain text, in JSON strings
	raw  []byte
	last push
}

type centrifugoPush struct {
	Connect *struct {
		Subs map[string]json.RawMessage `json:"subs"`
	} `json:"connect"`
	Channel string `json:"channel"`
	Pub     *struct {
		Data json.RawMessage `json:"data"`
	} `json:"pub"`
	Disconnect *struct {
		Code   int    `json:"code"`
		Reason string `json:"reason"`
	} `json:"disconnect"`
}

func (d *centrifugoDecoder) decode(b []byte) (push, error) {
	// Fast path: the very bytes of the last push.
	if len(d.raw) > 0 && bytes.Equal(b, d.raw) {
		return d.last, nil
	}
	d.raw = d.raw[:0]
	var p centrifugoPush
	if err := json.Unmarshal(b, &p); err != nil {
		return push{}, err
	}
	last, err := d.read(p, b)
	if err != nil {
		return push{}, err
	}
	d.raw, d.last = append(d.raw, b...), last
	return last, nil
}

func (d *centrifugoDecoder) read(p centrifugoPush, b []byte) (push, error) {
	switch {
	case p.Pub != nil:
		data, err := d.payload(p.Pub.Data)
		return push{kind: pushMessage, topic: p.Channel, data: data}, err
	case p.Connect != nil && len(p.Connect.Subs) == 1:
		return push{kind: pushReady}, nil
	case p.Disconnect != nil:
		return push{}, fmt.Errorf("the server disconnected: %d %s", p.Disconnect.Code, p.Disconnect.Reason)
	case string(b) == "{}":
		return push{}, nil
	}
	return push{}, errors.New("is not what a subscriber expects")
}

func (d *centrifugoDecoder) payload(data json.RawMessage) ([]byte, error) {
	if !d.text {
		return data, nil
	}
	var text string
	err := json.Unmarshal(data, &text)
	return []byte(text), err
}

func centrifugoConnect(topic string) string { return `{"subs":{"` + topic + `":{}}}` }

func newCentrifugo(k *Kit, o Options, subscriber func(number int, topic string, d decoder, events Events) Machine) Dialect {
	d := &centrifugoDecoder{text: o.ContentType == "text/plain"}
	return &foreignDialect{
		Kit: k,
		subscriber: func(number int, topic string, events Events) Machine {
			return subscriber(number, topic, d, events)
		},
		form: func(topic string) PublishForm {
			f := plainForm(topic, PostTo(o.Authority, "/api/publish", "application/json", "X-API-Key: "+o.APIKey+"\r\n"))
			f.answer = centrifugoAnswer
			f.wrap = func(b, payload []byte) []byte {
				b = append(b, `{"channel":"`+topic+`","data":`...)
				if d.text {
					b = strconv.AppendQuote(b, string(payload))
				} else {
					b = append(b, payload...)
				}
				return append(b, '}')
			}
			return f
		},
	}
}

// centrifugoAnswer knows that an error is answered with 200, too.
func centrifugoAnswer(_ string, head Head, body []byte) (p wire.Position, taken bool, err error) {
	if head.Status != http.StatusOK {
		return p, false, nil
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return p, false, fmt.Errorf("answer %.200q: %w", body, err)
	}
	return p, answer.Error == nil && answer.Result != nil, nil
}

func newCentrifugoSSE(k *Kit, o Options) Dialect {
	shared := &sseKit{kit: k}
	return newCentrifugo(k, o, func(number int, topic string, d decoder, events Events) Machine {
		path := "/connection/uni_sse?cf_connect=" + url.QueryEscape(centrifugoConnect(topic))
		return shared.newClient(number, topic, EventSource(o.Authority, path), d, false, events)
	})
}

func newCentrifugoStream(k *Kit, o Options) Dialect {
	return newCentrifugo(k, o, func(number int, topic string, d decoder, events Events) Machine {
		body := centrifugoConnect(topic)
		return &streamer{
			listener: listener{number: number, topic: topic, events: events, decoder: d},
			request: []byte(PostTo(o.Authority, "/connection/uni_http_stream", "application/json", "") +
				strconv.Itoa(len(body)) + "\r\n\r\n" + body),
			splitter: &lineSplitter{},
			parser:   Parser{heads: &k.streams},
		}
	})
}

func newCentrifugoWS(k *Kit, o Options) Dialect {
	return newCentrifugo(k, o, func(number int, topic string, d decoder, events Events) Machine {
		return &socket{
			listener: listener{number: number, topic: topic, events: events, decoder: d},
			request:  Upgrade(o.Authority, "/connection/uni_websocket"),
			hello:    AppendFrame(nil, FinText, []byte(centrifugoConnect(topic))),
			lines:    true,
		}
	})
}
