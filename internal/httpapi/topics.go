package httpapi

import (
	"math"
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Bounds of a page.
const (
	defaultPage = 100
	maxPage     = 1000
)

func (a *API) listTopics(w http.ResponseWriter, r *http.Request, p asker) error {
	q, err := query(r)
	if err != nil {
		return err
	}
	after, err := one(q, "after")
	if err != nil {
		return err
	}
	n, err := number(q, "limit", 1, maxPage, defaultPage)
	if err != nil {
		return err
	}
	list := a.Broker.Topics(after, int(n), func(topic string) bool {
		return a.Authority.Allow(p.Principal, auth.Subscribe, topic) == nil
	})
	return a.writeJSON(w, http.StatusOK, list)
}

// readable returns the topic in the path if the principal may read it and it is
// there.
func (a *API) readable(r *http.Request, p asker) (string, error) {
	topic, err := topicOf(r)
	if err == nil {
		err = a.Authority.Allow(p.Principal, auth.Subscribe, topic)
	}
	return topic, err
}

// toHaveIt is the remedy for who looks at a topic that is not there.
const toHaveIt = "publish or subscribe to it"

func topicUnknown(topic, remedy string) *wire.Problem {
	return wire.NewProblem(wire.CodeTopicUnknown, remedy, "there is no topic %q now", topic)
}

func (a *API) showTopic(w http.ResponseWriter, r *http.Request, p asker) error {
	topic, err := a.readable(r, p)
	if err != nil {
		return err
	}
	state, ok := a.Broker.Topic(topic)
	if !ok {
		return topicUnknown(topic, toHaveIt)
	}
	return a.writeJSON(w, http.StatusOK, state)
}

// deleteTopic empties the topic's history, and tells its subscribers.
func (a *API) deleteTopic(w http.ResponseWriter, r *http.Request, p asker) error {
	topic, err := topicOf(r)
	if err != nil {
		return err
	}
	if wire.ReservedTopic(topic) {
		return reserved(topic)
	}
	if err := a.Authority.Allow(p.Principal, auth.Delete, topic); err != nil {
		return err
	}
	state, ok := a.Broker.Delete(topic, time.Now())
	if !ok {
		return topicUnknown(topic, "nothing of it is held; if it should be there, GET /v1/topics has the names of those that are")
	}
	return a.writeJSON(w, http.StatusOK, state)
}

// readTopic answers with what the topic holds, as frames.
func (a *API) readTopic(w http.ResponseWriter, r *http.Request, p asker) error {
	topic, err := a.readable(r, p)
	if err != nil {
		return err
	}
	start, n, err := readRange(r, topic)
	if err != nil {
		return err
	}
	q, err := query(r)
	if err != nil {
		return err
	}
	accepts := acceptsOf(r.Header)
	format, err := formatOf(q, accepts)
	if err != nil {
		return err
	}
	frames, ok := a.Broker.ReadTopic(start, broker.Limit{Frames: int(n), Bytes: math.MaxInt}, time.Now())
	if !ok {
		return topicUnknown(topic, toHaveIt)
	}
	_, err = a.sink(w, format, accepts.Gzip).Whole(nil, frames)
	return err
}

// readRange returns where to read from and how much.
func readRange(r *http.Request, topic string) (wire.Start, uint64, error) {
	q, err := query(r)
	if err != nil {
		return wire.Start{}, 0, err
	}
	n, err := number(q, "limit", 1, maxPage, defaultPage)
	if err != nil {
		return wire.Start{}, 0, err
	}
	after, err := one(q, "after")
	if err != nil || after == "" {
		return wire.Start{Topic: topic, From: wire.FromOldest}, n, err
	}
	position, err := wire.ParsePosition(after)
	if err != nil {
		return wire.Start{}, 0, wire.NewProblem(wire.CodeInvalidPosition, "give a position of this topic", "%v", err)
	}
	if position.Topic != topic {
		return wire.Start{}, 0, wire.NewProblem(wire.CodeInvalidPosition, "give a position of this topic", "position %q is of another topic than %q", after, topic)
	}
	return wire.StartAfter(position), n, nil
}
