package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// maxMany is how many messages one request may publish: what its answer and the
// time it takes are bounded by.
const maxMany = 1000

// publishMany takes many messages, in their order, each as if it came by itself:
// what is wrong with one is its own result. The body is an array, or lines.
func (a *API) publishMany(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	if why := a.Sessions.Draining(); why != nil {
		return why
	}
	split, answer, err := a.formOfMany(r)
	if err != nil {
		return err
	}
	body, err := readBody(w, r, maxRequestBytes)
	if err != nil {
		return err
	}
	items, err := split(body)
	if err != nil {
		return err
	}
	results := make([]wire.PublishResult, len(items))
	for i, item := range items {
		results[i] = a.publishOne(r, p, item)
	}
	a.Metrics.HTTPPublishesOfMany.Inc()
	answer(w, results)
	return nil
}

// formOfMany returns how the body is read and answered. What would be said of one
// message is not said of the request: it would seem to hold for all.
func (a *API) formOfMany(r *http.Request) (split func([]byte) ([]json.RawMessage, error), answer func(http.ResponseWriter, []wire.PublishResult), err error) {
	if r.URL.RawQuery != "" || r.Header["Idempotency-Key"] != nil {
		return nil, nil, wire.NewProblem(wire.CodeInvalidRequest, "give each message its own ttl, key, client and id",
			"publishing many has no query and no Idempotency-Key header")
	}
	mediaType, isJSON, err := mediaTypeOf(r.Header["Content-Type"])
	if err != nil {
		return nil, nil, err
	}
	if isJSON {
		return splitArray, a.answerArray, nil
	}
	if base, _, err := mime.ParseMediaType(mediaType); err != nil || base != wire.NDJSON.ContentType() {
		return nil, nil, wire.NewProblem(wire.CodeUnsupportedType, "send an array as application/json, or lines as application/x-ndjson",
			"many messages do not come as %.80q", mediaType)
	}
	return splitLines, a.answerLines, nil
}

// splitArray returns the elements of body, once all of it is known to be an array.
func splitArray(body []byte) (items []json.RawMessage, err error) {
	var whole json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		return nil, unreadable(err)
	}
	dec := json.NewDecoder(bytes.NewReader(whole))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('[') {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, "send [{…},{…}], or one message to its topic's path", "the body is not an array")
	}
	for dec.More() {
		if len(items) == maxMany {
			return nil, tooMany()
		}
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			panic("BUG: an array that was read cannot be read: " + err.Error())
		}
		items = append(items, item)
	}
	return items, nil
}

// splitLines returns the lines of body, but for empty ones.
func splitLines(body []byte) (items []json.RawMessage, err error) {
	for line := range bytes.Lines(body) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(items) == maxMany {
			return nil, tooMany()
		}
		items = append(items, line)
	}
	return items, nil
}

func tooMany() *wire.Problem {
	return wire.NewProblem(wire.CodeMessageTooLarge, "send less at a time", "the body has more than %d messages", maxMany)
}

// publishOne publishes one of many.
func (a *API) publishOne(r *http.Request, p auth.Principal, raw []byte) wire.PublishResult {
	item, err := readItem(raw)
	var published wire.Published
	if err == nil {
		published, err = a.takeItem(r.Context(), p, item)
	}
	if err != nil {
		return wire.PublishResult{Problem: a.problemOf(r, err)}
	}
	return wire.PublishResult{Published: &published}
}

// takeItem publishes a message that came with others, or on a connection that goes
// both ways.
func (a *API) takeItem(ctx context.Context, p auth.Principal, item *wire.PublishItem) (wire.Published, error) {
	release, err := a.Limiter.Admit(ctx, limit.Publish, p.Name)
	if err != nil {
		return wire.Published{}, err
	}
	defer release()
	topic, err := checkTopic(item.Topic)
	if err != nil {
		return wire.Published{}, err
	}
	if err := a.mayPublish(p, topic); err != nil {
		return wire.Published{}, err
	}
	m, body, err := messageOfItem(item)
	if err != nil {
		return wire.Published{}, err
	}
	return a.takeMessage(ctx, p, m, body)
}

func readItem(raw []byte) (*wire.PublishItem, error) {
	if !bytes.HasPrefix(raw, []byte("{")) {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, `write it as {"topic":"a","data":1}`, "the message is not an object")
	}
	if !utf8.Valid(raw) { // encoding/json would replace what is not
		return nil, wire.NewProblem(wire.CodeInvalidBody, "send UTF-8, and other bytes in base64", "the message is not valid UTF-8")
	}
	item := &wire.PublishItem{}
	return item, decode(raw, item)
}

// messageOfItem is messageOf for one of many.
func messageOfItem(item *wire.PublishItem) (m *message, body []byte, err error) {
	m = newMessage(item.Topic)
	mediaType, body, err := payloadOf(item)
	if err != nil {
		return nil, nil, err
	}
	if m.Type, m.isJSON, err = mediaTypeOf([]string{mediaType}); err != nil {
		return nil, nil, err
	}
	return m, body, m.takeMembers(item)
}

// payloadOf returns what is published, and its type.
func payloadOf(item *wire.PublishItem) (mediaType string, body []byte, err error) {
	typed := item.Data == nil && item.Type != ""
	switch {
	case item.Data != nil && item.Type == "" && item.Text == nil && item.Base64 == nil:
		return "application/json", item.Data, nil
	case typed && item.Text != nil && item.Base64 == nil:
		return item.Type, []byte(*item.Text), nil
	case typed && item.Base64 != nil && item.Text == nil:
		return item.Type, *item.Base64, nil
	}
	return "", nil, wire.NewProblem(wire.CodeInvalidRequest, `give data, or type with either text or base64`, "the message has no payload, or more than one")
}

// takeMembers takes what else is said of a message.
func (m *message) takeMembers(item *wire.PublishItem) error {
	if ttl := item.TTL; ttl != nil {
		if *ttl < 1 || *ttl > maxTTLSeconds {
			return outside("ttl", strconv.FormatUint(*ttl, 10), 1, maxTTLSeconds)
		}
		m.ttl = time.Duration(*ttl) * time.Second
	}
	if item.Client != nil {
		if err := checkClient(*item.Client); err != nil {
			return err
		}
		m.Client = *item.Client
	}
	if item.ID != nil {
		if err := wire.CheckID(*item.ID); err != nil {
			return badID(err)
		}
		m.ID = *item.ID
	}
	m.Key = item.Key
	return checkKey(m.Key)
}

func (a *API) answerArray(w http.ResponseWriter, results []wire.PublishResult) {
	w.Header().Set("Content-Type", "application/json")
	a.writeBody(w, http.StatusOK, results)
}

func (a *API) answerLines(w http.ResponseWriter, results []wire.PublishResult) {
	var lines []byte
	for _, result := range results {
		lines = append(lines, lineOf(result)...)
	}
	w.Header().Set("Content-Type", wire.NDJSON.ContentType())
	a.writeWhole(w, http.StatusOK, lines)
}
