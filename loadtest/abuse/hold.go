package main

import (
	"context"
	"strconv"
	"sync"
)

// The attacks of this file hold connections, and what a server keeps for each.

func slowHeads(ctx context.Context, r *raid) error {
	r.stand(ctx, func(int) stance {
		return stance{say: []byte("GET /v1/poll?topic=abuse.slow HTTP/1.1\r\nHost: 127.0.0.1\r\n"), nag: []byte("X-A: b\r\n")}
	})
	return nil
}

func slowBodies(ctx context.Context, r *raid) error {
	const promised = 60_000
	head := []byte("POST /v1/topics/abuse.slow/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: " +
		strconv.Itoa(promised) + "\r\n\r\n")
	r.stand(ctx, func(int) stance { return stance{say: head, nag: []byte("x")} })
	return nil
}

// slowReaders keeps the topic busy from addresses of its own, since readers may be
// at their addresses' limits.
func slowReaders(ctx context.Context, r *raid) error {
	const perSecond, size = 100, 16 << 10
	var busy sync.WaitGroup
	busy.Go(func() { r.publishBeside(ctx, besideSources, perSecond, "abuse.busy", size) })
	defer busy.Wait()
	asks := [][]byte{get("/v1/poll?mode=stream&topic=abuse.busy"), get("/v1/sse?topic=abuse.busy")}
	r.stand(ctx, func(number int) stance { return stance{say: asks[number%len(asks)], silent: true} })
	return nil
}

// halfOpen needs a position, without which a stateless poll does not wait.
func halfOpen(ctx context.Context, r *raid) error {
	var published struct{ Position string }
	if err := r.begin(ctx, 0, publishTo("abuse.quiet", []byte("x")), &published); err != nil {
		return err
	}
	poll := get("/v1/poll?topic=" + published.Position)
	stances := []stance{{}, {say: poll, shut: true}, {say: poll, silent: true}}
	r.stand(ctx, func(number int) stance { return stances[number%len(stances)] })
	return nil
}

// connections makes half of the connections to close them again, in order or with
// a reset, and half to hold them.
func connections(ctx context.Context, r *raid) error {
	const flooders = 50
	var flood sync.WaitGroup
	flood.Go(func() {
		each(flooders, func(number int) {
			for turn := 0; r.paced.next(ctx); turn++ {
				r.touch(ctx, number+turn*flooders)
			}
		})
	})
	defer flood.Wait()
	r.stand(ctx, func(int) stance { return stance{} })
	return nil
}

// touch connects, and closes at once.
func (r *raid) touch(ctx context.Context, number int) {
	r.tally.operation()
	l, err := r.dial(ctx, number)
	if err != nil {
		r.missed(ctx)
		return
	}
	l.end()
}

// hoarders hold sessions rather than connections.
func hoarders(ctx context.Context, r *raid) error {
	const topicsEach, groups, size = 100, 4, 64 << 10
	var names []string
	for i := range topicsEach * groups {
		names = append(names, "abuse.hoard."+strconv.Itoa(i))
	}
	var opening sync.WaitGroup
	opening.Go(func() {
		each(r.crowd, func(number int) { r.hoard(ctx, number, names[number%groups*topicsEach:][:topicsEach]) })
	})
	defer opening.Wait()
	r.publishOver(ctx, names, size)
	return nil
}

// hoard opens a session, however often it is refused.
func (r *raid) hoard(ctx context.Context, number int, topics []string) {
	request := openWith(topics...)
	for rest(ctx, again) && !r.openOnce(ctx, number, request) {
	}
}

// openOnce reports whether the session was opened.
func (r *raid) openOnce(ctx context.Context, number int, request []byte) bool {
	r.tally.operation()
	s := r.speaker(ctx, number)
	if s == nil {
		return false
	}
	defer s.end()
	a, err := s.exchange(request)
	if err != nil {
		return false
	}
	r.tally.answered(a.status)
	return a.succeeds()
}

// publishBeside publishes from so many further addresses, at a pace of its own.
func (r *raid) publishBeside(ctx context.Context, sources, perSecond int, topic string, size int) {
	a := r.attack
	a.first, a.sources, a.crowd, a.pace, a.tiny = a.first+a.sources, sources, sources, perSecond, false
	b := &raid{attack: a, target: r.target, paced: newPace(perSecond), tally: r.tally, open: r.open}
	var pacing sync.WaitGroup
	pacing.Go(func() { b.paced.run(ctx, perSecond) })
	defer pacing.Wait()
	b.publishOver(ctx, []string{topic}, size)
}

// publishOver publishes messages of that size to the topics in turn.
func (r *raid) publishOver(ctx context.Context, topics []string, size int) {
	requests := make([][]byte, len(topics))
	for i, topic := range topics {
		requests[i] = publishTo(topic, filling(size))
	}
	r.request(ctx, func(number, turn int) []byte { return requests[(number+turn*r.crowd)%len(requests)] })
}

// filling is text of that size.
func filling(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}
