package throttle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A user has a session that polls, and publishes to its own topic in a closed loop:
// the next call is wanted when the one before was answered, and a pause is over. Who
// is refused comes again when it was told to.
//
// It belongs to one goroutine, and has another while it has a session.
type user struct {
	*asker
	trial  *trial
	ledger *ledger
	pauses pauses
	book   *book

	session string // empty: none
	calls   int    // that were completed with it
	hangUp  context.CancelFunc
	polling sync.WaitGroup
	polled  error // why polling ended; owned by that goroutine until polling is done
}

// live is a user's life, which begins at the given time. No request is sent for the
// first time, or again, when the run is over; one that was sent is waited for.
func (u *user) live(ctx context.Context, wanted time.Time) {
	if !u.until(ctx, wanted) {
		return
	}
	err := u.loop(ctx, wanted)
	u.ledger.await(ctx, u.patience)
	err = errors.Join(err, u.leave(ctx))
	u.note(ctx, err)
}

// loop makes calls until the run is over.
func (u *user) loop(ctx context.Context, wanted time.Time) error {
	for number := 1; ; number++ {
		done, err := u.call(ctx, number, wanted)
		if err != nil || !done {
			u.book.unfinished.Record(u.trial.end.Sub(wanted))
			return err
		}
		u.trial.completed.Add(1)
		wanted = time.Now().Add(u.pauses.next())
		if !u.until(ctx, wanted) {
			return nil
		}
	}
}

// until waits, and reports whether the run is not over then.
func (u *user) until(ctx context.Context, t time.Time) bool {
	if d := time.Until(t); d > 0 && !sleep(ctx, min(d, time.Until(u.trial.end))) {
		return false
	}
	return ctx.Err() == nil && time.Now().Before(u.trial.end)
}

// call makes one call, of a message with the given number. It reports whether it was
// completed; without an error it was not because the run is over.
func (u *user) call(ctx context.Context, number int, wanted time.Time) (bool, error) {
	if err := u.renew(ctx); err != nil {
		return false, err
	}
	if u.session == "" && u.until(ctx, time.Now()) {
		if done, err := u.open(ctx); !done {
			return false, err
		}
	}
	if !u.until(ctx, time.Now()) {
		return false, nil
	}
	return u.publish(ctx, number, wanted)
}

// renew ends the session after as many calls as it is for, once their messages came:
// who knows when there will be another.
func (u *user) renew(ctx context.Context) error {
	if most := u.trial.cfg.CallsPerSession; most == 0 || u.calls < most {
		return nil
	}
	u.ledger.await(ctx, u.patience)
	return u.leave(ctx)
}

// open opens a session, and polls it. One that comes when the run is over does not
// count.
func (u *user) open(ctx context.Context) (bool, error) {
	body, err := json.Marshal(wire.OpenRequest{Topics: []wire.Start{u.ledger.start()}})
	if err != nil {
		return false, fmt.Errorf("open a session: %w", err)
	}
	a, done, err := u.insist(ctx, &u.book.refused.Sessions, http.MethodPost, "/v1/sessions", body)
	if err == nil && done {
		err = a.want(http.StatusCreated)
	}
	if err != nil || !done {
		return false, withDoing("open a session", err)
	}
	u.book.quiet("given a session", a.took())
	var opened wire.SessionOpened
	if err := json.Unmarshal(a.body, &opened); err != nil || len(opened.Positions) != 1 {
		return false, fmt.Errorf("open a session: answered %.300q", a.body)
	}
	if told := time.Duration(opened.Limits.WaitMS) * time.Millisecond; told > u.trial.cfg.Wait {
		return false, fmt.Errorf("open a session: requests queue for up to %v on this server: set --wait to that time", told)
	}
	u.ledger.opened(opened.Positions[0])
	u.session, u.calls = opened.Session, 0
	if a.had.Before(u.trial.end) {
		u.book.sessions++
	}
	u.poll(ctx, time.Duration(opened.Limits.PollTimeoutMS)*time.Millisecond)
	return true, nil
}

// poll polls the session until hangUp. The server holds a poll for that long.
func (u *user) poll(ctx context.Context, held time.Duration) {
	ctx, u.hangUp = context.WithCancel(ctx)
	poller := *u.asker
	poller.patience += held
	s := subscriber{asker: &poller, ledger: u.ledger, session: u.session}
	u.polling.Go(func() { u.polled = s.run(ctx) })
}

// leave stops polling and ends the session, if there is one.
func (u *user) leave(ctx context.Context) error {
	if u.session == "" {
		return nil
	}
	u.hangUp()
	u.polling.Wait()
	path := "/v1/sessions/" + u.session
	u.session = ""
	a, done, err := u.insist(ctx, &u.book.refused.Other, http.MethodDelete, path, nil)
	if err == nil && done {
		err = a.want(http.StatusNoContent)
	}
	return errors.Join(u.polled, withDoing("end a session", err))
}

// publish publishes the message, which the hook must have let pass once.
func (u *user) publish(ctx context.Context, number int, wanted time.Time) (bool, error) {
	body, err := json.Marshal(content{number})
	if err != nil {
		return false, fmt.Errorf("publish: %w", err)
	}
	path := "/v1/topics/" + u.ledger.topic + "/messages?session=" + u.session
	a, done, err := u.insist(ctx, &u.book.refused.Calls, http.MethodPost, path, body)
	if err == nil && done {
		err = a.want(http.StatusOK)
	}
	if err != nil || !done {
		return false, withDoing("publish", err)
	}
	u.ledger.took()
	u.calls++
	at, times := u.trial.backend.passed(u.ledger.topic, number)
	if times != 1 {
		u.book.hook.note(fmt.Errorf("the server accepted a message that the hook had allowed %d times", times))
		at = a.sent
	}
	u.book.quiet("admitted", at.Sub(a.sent))
	u.book.finish(finished{wanted, a.sent, at, a.had}, u.trial.begin, u.trial.end)
	return true, nil
}

// insist sends a request again and again, each time when it was told to, until it is
// not refused. It reports false when the run is over before.
func (u *user) insist(ctx context.Context, refused *int64, method, path string, body []byte) (answer, bool, error) {
	contentType := ""
	if body != nil {
		contentType = "application/json"
	}
	for {
		a, err := u.ask(ctx, method, path, contentType, body)
		if err != nil || !a.refused {
			return a, err == nil, err
		}
		u.book.refusal(refused, a.took())
		if !u.until(ctx, a.had.Add(a.comeAgain)) {
			return a, false, nil
		}
	}
}

// note keeps why a life ended, if not with the run.
func (u *user) note(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errUntold):
		u.book.untold.note(err)
	default:
		u.book.failed.note(err)
	}
}

func withDoing(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
