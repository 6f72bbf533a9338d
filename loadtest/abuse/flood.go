package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
)

// The attacks of this file ask for more than their share.

func pollFlood(ctx context.Context, r *raid) error {
	id, err := r.session(ctx, "abuse.quiet")
	if err != nil {
		return err
	}
	poll := get("/v1/sessions/" + id + "/poll?ack=0")
	r.request(ctx, func(int, int) []byte { return poll })
	return nil
}

// newTopics publishes to a new topic and subscribes to another in turn. It leaves
// the topic that it subscribed to before, so as not to be stopped by a session's
// bound.
func newTopics(ctx context.Context, r *raid) error {
	id, err := r.session(ctx, "abuse.quiet")
	if err != nil {
		return err
	}
	name := func(number, turn int) string { return fmt.Sprintf("abuse.new.%d.%d", number, turn) }
	r.request(ctx, func(number, turn int) []byte {
		if turn%2 == 0 {
			return publishTo(name(number, turn), []byte("x"))
		}
		return change(id, quoted(name(number, turn)), quoted(name(number, turn-2)))
	})
	return nil
}

func guesses(ctx context.Context, r *raid) error {
	id, err := r.session(ctx, "abuse.quiet")
	if err != nil {
		return err
	}
	r.request(ctx, func(_, turn int) []byte {
		guessed := guess(id)
		path := "/v1/sessions/" + guessed
		switch turn % 3 {
		case 0:
			return get(path + "/poll?ack=0")
		case 1:
			return change(guessed, quoted("abuse.quiet"), "")
		default:
			return get(path)
		}
	})
	return nil
}

// guess returns an id that looks like the one that is known.
func guess(known string) string {
	kinds := []string{"0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
	random := make([]byte, len(known))
	_, _ = rand.Read(random) // it does not fail
	for i := range random {
		c := known[i : i+1]
		kept := true
		for _, kind := range kinds {
			if strings.Contains(kind, c) {
				random[i], kept = kind[int(random[i])%len(kind)], false
			}
		}
		if kept {
			random[i] = c[0]
		}
	}
	return string(random)
}

func patches(ctx context.Context, r *raid) error {
	const each = 100
	id, err := r.session(ctx)
	if err != nil {
		return err
	}
	var names []string
	for i := range each {
		names = append(names, "abuse.patch."+strconv.Itoa(i))
	}
	turns := [][]byte{change(id, quoted(names...), ""), change(id, "", quoted(names...))}
	r.request(ctx, func(_, turn int) []byte { return turns[turn%len(turns)] })
	return nil
}

func largeMessages(ctx context.Context, r *raid) error {
	const topics, size = 10, 64 << 10
	var names []string
	for i := range topics {
		names = append(names, "abuse.large."+strconv.Itoa(i))
	}
	r.publishOver(ctx, names, size)
	return nil
}

func oversized(ctx context.Context, r *raid) error {
	const large = 256 << 10
	long := strings.Repeat("x", large/4)
	turns := [][]byte{
		[]byte("GET /v1/poll?topic=abuse.quiet HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + long + "\r\n\r\n"),
		get("/v1/poll?topic=abuse.quiet&long=" + long),
		publishTo("abuse.large.0", filling(large)),
	}
	r.request(ctx, func(_, turn int) []byte { return turns[turn%len(turns)] })
	return nil
}
