package auth

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Prohibition takes a topic, or all that a pattern matches, from a subject until a moment: all
// rights but Manage. It is immutable.
type Prohibition struct {
	Topic  string `json:"topic"`            // or pattern
	Until  int64  `json:"until"`            // Unix milliseconds
	Reason string `json:"reason,omitempty"` // the application's own words; empty: none
}

// Problem returns the refusal of a topic or pattern.
func (p *Prohibition) Problem(name string) *wire.Problem {
	until := time.UnixMilli(p.Until).UTC().Format(time.RFC3339)
	return problem.New(wire.CodeForbidden, fmt.Sprintf("use %s again after %s", wire.Quote(name), until),
		"%s", cmp.Or(p.Reason, fmt.Sprintf("the application has forbidden %s until %s", wire.Quote(name), until)))
}

// Prohibitions are those of one subject. They are immutable.
type Prohibitions []Prohibition

// Find returns the prohibition that covers a topic or pattern now, or nil. If several do, it returns
// the one that ends last. A presence topic is forbidden with the topic that it is about. Find does
// not allocate.
func (ps Prohibitions) Find(name string) (last *Prohibition) {
	if len(ps) == 0 { // Fast path: most subjects
		return nil
	}
	if about, ok := wire.PresenceOf(name); ok {
		name = about
	}
	until := time.Now().UnixMilli()
	for i := range ps {
		if p := &ps[i]; until < p.Until && covers(p.Topic, name) {
			last, until = p, p.Until
		}
	}
	return last
}

// CheckStarts returns the refusal of subscriptions of which one is forbidden, or nil. A topic that
// is resumed together with a pattern that matches it is not refused, because the pattern leaves it
// out. CheckStarts does not check a request with more than MaxPatterns patterns: no session accepts it.
func (ps Prohibitions) CheckStarts(starts []wire.Start) error {
	if len(ps) == 0 { // Fast path: most subjects
		return nil
	}
	var patterns []string // a request may name thousands of topics, but only a few patterns
	for _, start := range starts {
		if wire.IsPattern(start.Topic) {
			patterns = append(patterns, start.Topic)
		}
	}
	if len(patterns) > MaxPatterns {
		return nil
	}
	for _, start := range starts {
		if p := ps.Find(start.Topic); p != nil && !isResumedByPattern(start, patterns) {
			return p.Problem(start.Topic)
		}
	}
	return nil
}

// isResumedByPattern reports whether start is a topic, not a pattern, that one of the patterns resumes.
func isResumedByPattern(start wire.Start, patterns []string) bool {
	return start.From == wire.FromPosition && !wire.IsPattern(start.Topic) &&
		slices.ContainsFunc(patterns, func(by string) bool { return wire.Matches(by, start.Topic) })
}

// prohibited are the prohibitions of all subjects. All methods may be called concurrently.
type prohibited struct {
	most  int          // topics and patterns, of all subjects together; immutable
	count atomic.Int64 // of them; see Forbidden
	due   atomic.Int64 // when prune scans next, in Unix milliseconds; 0: not; changes with mu held

	mu      sync.RWMutex            // guards the fields below; each publish takes it
	of      map[string]Prohibitions // by subject
	scanned int64                   // when prune scanned last, in Unix milliseconds

	recorded bool // the journal has had a record of a prohibition; guarded by Revocations.writing
}

const (
	// maxProhibitions bounds the topics and patterns of all prohibitions: 100,000 take up to 70 MB.
	maxProhibitions = 100_000

	// MaxForbidden bounds the topics and patterns that are forbidden to one subject. They are one
	// record of the journal.
	MaxForbidden = 64

	// MaxReasonBytes bounds the reason of a prohibition.
	MaxReasonBytes = 256

	// MaxPatterns bounds the patterns of a session.
	MaxPatterns = 64

	// maxProhibitionDays bounds how long a prohibition lasts, because the caller of Forbid could
	// otherwise fill the list for ever. It is the length of a leap year.
	maxProhibitionDays = 366

	// pruneInterval bounds how often prune scans all prohibitions, while readers wait.
	pruneInterval = time.Second
)

// Forbidden returns what is forbidden to a subject. It does not allocate.
func (r *Revocations) Forbidden(subject string) Prohibitions {
	// Fast path: nothing is forbidden to anybody.
	if r == nil || r.prohibited.count.Load() == 0 {
		return nil
	}
	return r.prohibited.to(subject)
}

// Forbid forbids topics and patterns to a subject until a moment, in place of those that it is
// forbidden now and that mayLift accepts. The names must be valid, and the reason at most
// MaxReasonBytes long. When it returns nil, this is on disk and in force. It writes nothing if nothing
// changes. The error is a *wire.Problem: invalid_request, overloaded if there are too many
// prohibitions, or internal if the file cannot be written.
func (r *Revocations) Forbid(subject string, topics []string, until time.Time, reason string, mayLift func(name string) bool, now time.Time) error {
	switch {
	case r == nil:
		return problem.New(wire.CodeInvalidRequest, "ask the operator to set auth.revocations to the path of a new file, and to restart the daemon",
			"the daemon has no file for revocations, where it would keep what is forbidden")
	case !isSubject(subject):
		return badSubject()
	case len(topics) > 0 && !until.After(now):
		return problem.New(wire.CodeInvalidRequest, "send a later time, in Unix milliseconds", "until_ms must be later than the daemon's clock, %d; got %d", now.UnixMilli(), until.UnixMilli())
	case len(topics) > 0 && until.After(now.AddDate(0, 0, maxProhibitionDays)):
		return problem.New(wire.CodeInvalidRequest, "send an earlier time, in Unix milliseconds, and forbid again before it has passed",
			"until_ms must be at most %d days after the daemon's clock, %d; got %d", maxProhibitionDays, now.UnixMilli(), until.UnixMilli())
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	p := &r.prohibited
	p.prune(now)
	was := r.Forbidden(subject)
	next := slices.DeleteFunc(slices.Clone(was), func(old Prohibition) bool { return now.UnixMilli() >= old.Until || mayLift(old.Topic) })
	others := len(next) // the caller may not lift them
	for _, topic := range topics {
		next = append(next, Prohibition{Topic: topic, Until: until.UnixMilli(), Reason: reason})
	}
	switch {
	case slices.Equal(next, was):
		return nil
	case len(next) > MaxForbidden && others > 0:
		return problem.New(wire.CodeInvalidRequest, "use patterns, or have a back end that may manage the others lift some of them",
			"at most %d topics and patterns can be forbidden to one subject; got %d, and %d others are forbidden already that you have no right to manage", MaxForbidden, len(topics), others)
	case len(next) > MaxForbidden:
		return problem.New(wire.CodeInvalidRequest, "use patterns", "at most %d topics and patterns can be forbidden to one subject; got %d", MaxForbidden, len(next))
	}
	if n := int(p.count.Load()) - len(was) + len(next); n > p.most && len(next) > len(was) {
		free := p.free()
		return problem.New(wire.CodeOverloaded, "wait, lift prohibitions, or use patterns",
			"the daemon keeps at most %d topics that are forbidden to subjects, and the next one is free at %s", p.most, free.UTC().Format(time.RFC3339)).Retry(max(free.Sub(now), time.Millisecond))
	}
	record := prohibitionRecord{subject, next}
	if err := r.journal.Append(record.bytes(), r.held()); err != nil {
		r.log.Error("cannot write auth.revocations", zap.Error(err))
		return problem.New(wire.CodeInternal, "have the operator correct the error, and forbid again", "the prohibition could not be written to disk")
	}
	p.put(record)
	return nil
}

// CheckSubject returns nil if a principal can have this name. The error is a *wire.Problem.
func CheckSubject(subject string) error {
	if !isSubject(subject) {
		return badSubject()
	}
	return nil
}

func badSubject() error {
	return problem.New(wire.CodeInvalidRequest, "send the sub of the user's tokens, the name of an API key, or the common name of a certificate",
		"subject must have 1 to %d bytes, without control characters", maxSubjectBytes)
}

// A prohibitionRecord is what the journal has of one subject: it replaces earlier ones. Without
// topics, nothing is forbidden any more.
//
// Older versions, which know only revocations, refuse the record: it has no subject.
type prohibitionRecord struct {
	Prohibited string       `json:"prohibited"` // the subject
	Topics     Prohibitions `json:"topics"`
}

// bytes returns what Revocations.read reads.
func (p prohibitionRecord) bytes() []byte {
	if p.Topics == nil {
		p.Topics = Prohibitions{}
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false) // which makes a character six bytes long
	if err := out.Encode(p); err != nil {
		panic("BUG: a prohibition does not marshal: " + err.Error())
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}

// to returns what is forbidden to a subject.
func (p *prohibited) to(subject string) Prohibitions {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.of[subject]
}

// put puts the prohibitions of a subject in force, which the journal has.
func (p *prohibited) put(r prohibitionRecord) {
	p.recorded = true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count.Add(int64(len(r.Topics) - len(p.of[r.Prohibited])))
	delete(p.of, r.Prohibited)
	if len(r.Topics) == 0 {
		return
	}
	p.of[r.Prohibited] = r.Topics
	p.scanAtLocked(r.Topics)
}

// scanAtLocked makes prune scan when the first of the prohibitions ends, or later.
func (p *prohibited) scanAtLocked(topics Prohibitions) {
	for _, one := range topics {
		at := max(one.Until, p.scanned+pruneInterval.Milliseconds(), 1)
		if due := p.due.Load(); due == 0 || at < due {
			p.due.Store(at)
		}
	}
}

// prune drops the prohibitions that have ended, some of them up to pruneInterval later. It takes no
// lock unless one may have ended.
func (p *prohibited) prune(now time.Time) {
	if due := p.due.Load(); due != 0 && now.UnixMilli() >= due {
		p.scan(now)
	}
}

// scan drops all prohibitions that have ended.
func (p *prohibited) scan(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := now.UnixMilli()
	p.scanned = at
	p.due.Store(0)
	for subject, were := range p.of {
		isOver := func(one Prohibition) bool { return at >= one.Until }
		are := were
		if slices.ContainsFunc(were, isOver) {
			are = slices.DeleteFunc(slices.Clone(were), isOver) // readers have the old ones
			p.count.Add(int64(len(are) - len(were)))
			p.of[subject] = are
		}
		if len(are) == 0 {
			delete(p.of, subject)
		}
		p.scanAtLocked(are)
	}
}

// records yields the records of the subjects that are forbidden something. It holds no lock
// meanwhile, because to encode a full list takes long and each publish reads it.
func (p *prohibited) records() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		p.mu.RLock()
		of := maps.Clone(p.of)
		p.mu.RUnlock()
		for subject, topics := range of {
			if !yield(prohibitionRecord{subject, topics}.bytes()) {
				return
			}
		}
	}
}

// free returns when prune next drops a prohibition.
func (p *prohibited) free() time.Time {
	p.mu.RLock()
	defer p.mu.RUnlock()
	first := int64(math.MaxInt64)
	for _, topics := range p.of {
		for _, one := range topics {
			first = min(first, one.Until)
		}
	}
	return time.UnixMilli(max(first, p.due.Load()))
}

// subjects returns how many subjects are forbidden something.
func (p *prohibited) subjects() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.of)
}
