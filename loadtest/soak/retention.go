package soak

import (
	"sync"
	"time"
)

// A Retention is what the daemon keeps of each topic.
type Retention struct {
	Messages int           `json:"messages"`
	Bytes    int           `json:"bytes"`
	Age      time.Duration `json:"age"`
}

// retentions are the settings of the daemons that ran one after the other. They
// are safe for concurrent use.
type retentions struct {
	mu   sync.Mutex
	list []since
}

type since struct {
	from int32
	Retention
}

func (r *retentions) add(from int32, what Retention) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, since{from, what})
}

// during calls visit with each setting that held at some time from..to.
func (r *retentions) during(from, to int32, visit func(Retention)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.list {
		if s.from <= to && (i == len(r.list)-1 || r.list[i+1].from >= from) {
			visit(s.Retention)
		}
	}
}

// A cause is why a history may have let a message go, as a set.
type cause uint8

const (
	byAge cause = 1 << iota
	byOthers
	byDeletion
)

// slackMS forgives the daemon's clock: a message's time is taken before its turn.
const slackMS = 100

// A past is what the judge knows of one topic's history.
type past struct {
	retentions *retentions
	deletions  []deletion
	unseen     int64 // bytes of the messages that may be there and nobody saw
	mortal     bool  // one of these has a life of its own
}

// lost returns why the k-th message of b may have been let go of by then; 0 if the
// history must still have held it.
func (p *past) lost(b *book, k int, then int32) (why cause) {
	taken := b.times[k]
	if ttl := b.ttls[k]; ttl > 0 && taken+ttl <= then+slackMS {
		why |= byAge
	}
	newest := b.newestAt(then + slackMS)
	p.retentions.during(taken, then, func(r Retention) {
		if taken+int32(r.Age/time.Millisecond) <= then+slackMS {
			why |= byAge
		}
		if newest > k && (b.offsets[newest]-b.offsets[k] >= uint64(r.Messages) || b.held[newest+1]-b.held[k]+p.unseen > int64(r.Bytes)) {
			why |= byOthers
		}
	})
	for _, d := range p.deletions {
		if d.from <= then+slackMS && taken <= d.to+slackMS {
			why |= byDeletion
		}
	}
	return why
}
