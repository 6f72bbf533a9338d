package main

import (
	"strconv"
	"sync"
	"time"
)

// A Raid is what attackers count of one attack.
type Raid struct {
	Seconds    float64 `json:"seconds"`
	Operations int64   `json:"operations"` // requests, connections and bytes that were begun
	PerSecond  float64 `json:"per_second"`

	Connections  int64            `json:"connections"` // made
	MostOpen     int              `json:"most_open"`   // at one time
	NotConnected int64            `json:"not_connected"`
	Cut          int64            `json:"cut"` // ended by the server, without an answer
	Unanswered   int64            `json:"unanswered"`
	Answers      map[string]int64 `json:"answers"` // by status
	SentBytes    int64            `json:"sent_bytes"`

	NotBegun string `json:"not_begun,omitempty"` // why the attack could not begin
}

// A tally makes a Raid. It is safe for concurrent use.
type tally struct {
	mu   sync.Mutex
	raid Raid
	open int
}

func newTally() *tally { return &tally{raid: Raid{Answers: map[string]int64{}}} }

func (t *tally) note(change func(r *Raid)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.raid)
}

func (t *tally) operation()    { t.note(func(r *Raid) { r.Operations++ }) }
func (t *tally) notConnected() { t.note(func(r *Raid) { r.NotConnected++ }) }
func (t *tally) cut()          { t.note(func(r *Raid) { r.Cut++ }) }
func (t *tally) unanswered()   { t.note(func(r *Raid) { r.Unanswered++ }) }
func (t *tally) sent(n int)    { t.note(func(r *Raid) { r.SentBytes += int64(n) }) }

func (t *tally) answered(status int) {
	t.note(func(r *Raid) { r.Answers[strconv.Itoa(status)]++ })
}

func (t *tally) opened() {
	t.note(func(r *Raid) {
		t.open++
		r.Connections++
		r.MostOpen = max(r.MostOpen, t.open)
	})
}

func (t *tally) closed() { t.note(func(*Raid) { t.open-- }) }

// result is for when everyone is done.
func (t *tally) result(took time.Duration) Raid {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.raid
	r.Seconds = took.Seconds()
	r.PerSecond = float64(r.Operations) / r.Seconds
	return r
}
