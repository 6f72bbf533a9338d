package soak

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"time"
)

// features are what one daemon offers and another does not: they are asked for once,
// and staged if they are there.
type features struct {
	deletion bool // DELETE of a topic
	echo     bool // client= on publish, and echo=false: own messages do not come back
	patterns bool // a.* subscribes to all topics a.x, also those made later
}

// askFeatures asks the daemon at address, on a topic that nobody uses.
func askFeatures(ctx context.Context, address, topic string) (f features, err error) {
	status, err := request(ctx, http.MethodDelete, "http://"+address+"/v1/topics/"+topic, "")
	if err != nil {
		return f, err
	}
	// The topic is there: askEpoch has made it.
	f.deletion = status == http.StatusOK || status == http.StatusNoContent
	for body, there := range map[string]*bool{
		`{"topics":[],"client":"soak","echo":false}`: &f.echo,
		`{"topics":["soak-none.*"]}`:                 &f.patterns,
	} {
		if status, err = request(ctx, http.MethodPost, "http://"+address+"/v1/sessions", body); err != nil {
			return f, err
		}
		*there = status == http.StatusCreated
	}
	return f, nil
}

// missing returns what is not staged.
func (f *features) missing() (what []string) {
	if !f.deletion {
		what = append(what, "deletions of topics: this server has no DELETE")
	}
	if !f.echo {
		what = append(what, "echo=false: this server does not support it")
	}
	if !f.patterns {
		what = append(what, "patterns: this server does not support them")
	}
	return append(what, "max_rate and the policies for slow subscribers: the soak does not test them yet")
}

// request makes a request and returns the status that it is answered with.
func request(ctx context.Context, method, url, body string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// erase deletes a topic now and then, until ctx ends.
func (w *world) erase(ctx context.Context) {
	rng := w.lot('d', 0)
	for sleep(ctx, time.Duration(rng.Int64N(int64(2*erasesEvery)))) == nil {
		w.eraseOne(ctx, rng)
	}
}

const erasesEvery = 2 * time.Second

// eraseOne deletes a topic. If the answer is lost, it was done shortly after, if at all.
func (w *world) eraseOne(ctx context.Context, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	topic := rng.IntN(len(w.ledger.names))
	from := w.ledger.since(time.Now())
	// The ledger is told before: a subscriber may be told before the answer comes.
	deleted := w.ledger.asked(topic, from, math.MaxInt32-2*slackMS)
	status, err := request(ctx, http.MethodDelete, "http://"+w.ports.http.address()+"/v1/topics/"+w.ledger.names[topic], "")
	now := w.ledger.since(time.Now())
	if err == nil && status/100 == 2 {
		w.staged.deletions.Add(1)
		deleted(now, true)
	} else {
		deleted(now+int32(erasesEvery/time.Millisecond), false)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		w.fault(Protocol, "deleter", w.ledger.names[topic], "no answer to a deletion within %v", publishTimeout)
	}
}
