package main

import (
	"bytes"
	"context"
	"strconv"
	"time"
)

// racingPolls abandons polls and polls anew on other connections, at once: a session for
// each of the crowd.
func racingPolls(ctx context.Context, r *raid) error {
	faults := make([]error, r.crowd)
	each(r.crowd, func(number int) { faults[number] = r.race(ctx, number) })
	return faults[0]
}

// race counts the answers to the polls that were not abandoned.
func (r *raid) race(ctx context.Context, number int) error {
	topic := "abuse.race." + strconv.Itoa(number)
	var opened struct{ Session string }
	if err := r.begin(ctx, number, openWith(topic), &opened); err != nil {
		return err
	}
	for had := 0; r.paced.next(ctx); {
		r.tally.operation()
		poll := get("/v1/sessions/" + opened.Session + "/poll?ack=" + strconv.Itoa(had))
		if a, ok := r.raceOnce(ctx, number, poll, publishTo(topic, []byte("x"))); ok {
			r.tally.answered(a.status)
			if a.succeeds() {
				had += bytes.Count(a.body, []byte("\n"))
			}
		}
	}
	return nil
}

// raceOnce abandons a poll for another, and publishes what that waits for.
func (r *raid) raceOnce(ctx context.Context, number int, poll, publish []byte) (answer, bool) {
	const readBoth = 5 * time.Millisecond // in which the server reads both
	abandoned, current, publisher := r.speaker(ctx, number), r.speaker(ctx, number), r.speaker(ctx, number)
	for _, s := range []*speaker{abandoned, current, publisher} {
		if s == nil {
			return answer{}, false
		}
		defer s.end()
	}
	_ = abandoned.say(poll)
	abandoned.end()
	unsaid := current.begin(poll)
	if !rest(ctx, readBoth) {
		return answer{}, false
	}
	if _, err := publisher.exchange(publish); err != nil {
		return answer{}, false
	}
	a, err := current.answer(unsaid)
	return a, err == nil
}
