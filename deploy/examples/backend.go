package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A backend serves the files of a folder, and what the applications store.
type backend struct {
	*http.ServeMux
	push *pubsub.Client

	mu       sync.Mutex
	journals []*journal // guarded by mu; the newest last
}

// Bounds of what is stored. The oldest goes first.
const (
	mostJournals = 100
	mostEntries  = 1000
)

func newBackend(push *pubsub.Client, folder string) *backend {
	b := &backend{ServeMux: http.NewServeMux(), push: push}
	files := http.FileServer(http.Dir(folder))
	b.Handle("/", files)
	var once sync.Once
	b.HandleFunc("GET /ticker.html", func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { go publishPrices(push) })
		files.ServeHTTP(w, r)
	})
	b.HandleFunc("POST /llm", b.ask)
	b.HandleFunc("/chat/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"detail":"this daemon serves no chat: end it, and run make example-chat"}`, http.StatusNotFound)
	})
	b.HandleFunc("GET /journal/{topic}", b.serveJournal)
	return b
}

// A journal is what the application stores of a topic. It stores each entry, and then
// publishes it. So the journal has everything up to the topic's position.
type journal struct {
	topic string
	push  *pubsub.Client
	order sync.Mutex // held while an entry is published: entries are published in order

	mu      sync.Mutex
	first   int     // guarded by mu; the number of the oldest entry
	entries []entry // guarded by mu
}

type entry struct {
	id    string // unique in the journal; a valid idempotency key
	value any    // becomes JSON
}

func (b *backend) newJournal(topic string) *journal {
	j := &journal{topic: topic, push: b.push}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.journals = append(b.journals, j)
	b.journals = slices.Delete(b.journals, 0, max(0, len(b.journals)-mostJournals))
	return j
}

// journalOf returns the journal that a request names. If none exists, it answers the request
// and returns nil.
func (b *backend) journalOf(w http.ResponseWriter, r *http.Request) *journal {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.journals {
		if j.topic == r.PathValue("topic") {
			return j
		}
	}
	http.Error(w, `{"detail":"nothing is stored of this topic, or nothing any more"}`, http.StatusNotFound)
	return nil
}

// serveJournal answers {"first":N,"entries":[…]}.
func (b *backend) serveJournal(w http.ResponseWriter, r *http.Request) {
	j := b.journalOf(w, r)
	if j == nil {
		return
	}
	j.mu.Lock()
	values := make([]any, len(j.entries))
	for i, e := range j.entries {
		values[i] = e.value
	}
	answer := map[string]any{"first": j.first, "entries": values}
	j.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // it fails if the page has left
}

// add stores an entry, and publishes {"n":N,"entry":…} with its number. It returns when the
// entry is published. An entry with the id of another one is left out.
func (j *journal) add(id string, value any) {
	j.order.Lock()
	defer j.order.Unlock()
	n, added := j.store(entry{id, value})
	for added {
		_, err := j.push.PublishJSON(context.Background(), j.topic, map[string]any{"n": n, "entry": value}, pubsub.WithIdempotencyKey(id))
		if err == nil {
			return
		}
		log.Print(err)
		if problem := (*wire.Problem)(nil); errors.As(err, &problem) && problem.Status < 500 && problem.Status != http.StatusTooManyRequests {
			return // it would be refused again
		}
		time.Sleep(time.Second)
	}
}

func (j *journal) store(e entry) (n int, added bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if slices.ContainsFunc(j.entries, func(other entry) bool { return other.id == e.id }) {
		return 0, false
	}
	if len(j.entries) == mostEntries {
		j.entries = slices.Delete(j.entries, 0, 1)
		j.first++
	}
	j.entries = append(j.entries, e)
	return j.first + len(j.entries) - 1, true
}
