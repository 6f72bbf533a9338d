package auth

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/durable"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Revocations are the tokens that are refused although they are valid: single ones by their
// ids, and all tokens of a subject that were issued up to a moment. They also refuse the
// certificates of the subject whose validity began up to then. They are kept in a file:
// what Add has acknowledged outlasts a crash. All methods may be called concurrently, those
// that only read also on nil, which revokes nothing.
//
// A revocation is dropped once every token and certificate that it refuses has expired. Until
// then it stays: when the list is full, Add fails.
//
// They also have what is forbidden to subjects; see Forbid.
//
// The file is a durable.Journal with a JSON object for each revocation, and for each change of what
// is forbidden to a subject.
//
//	pubsubd revocations 1
//	8a3f0c1e {"subject":"alice","time":1764043200000}
//	51d2b7aa {"token_id":"4f1c9a","time":1764043260000}
//	03b91c7d {"prohibited":"bob","topics":[{"topic":"chat.42","until":1764046800000,"reason":"spam"}]}
type Revocations struct {
	path string           // immutable, like the next three fields
	keep [2]time.Duration // by kind: how long a revocation is kept; 0: without end
	most int
	log  *zap.Logger

	writing sync.Mutex // held by Add, Forbid, Check and Close
	journal *durable.Journal

	prohibited prohibited // its lock is taken after writing, and never during I/O

	mu    sync.RWMutex      // guards the fields below; taken after writing, and never during I/O
	times map[revokee]int64 // when each was revoked last, in Unix milliseconds
	order [2][]Revocation   // by kind, oldest first; those that were revoked again later are stale
}

// Kinds of revocations.
const (
	ofToken = iota
	ofSubject
)

// A revokee is a subject or the id of a token.
type revokee struct{ subject, tokenID string }

func (of revokee) kind() int {
	if of.tokenID != "" {
		return ofToken
	}
	return ofSubject
}

// of returns what is revoked.
func (v Revocation) of() revokee { return revokee{v.Subject, v.TokenID} }

const (
	// maxRevocations bounds the list: 100,000 take up to 60 MB.
	maxRevocations = 100_000

	// maxTokenIDBytes bounds the id of a revoked token.
	maxTokenIDBytes = 256

	// revocationSlack is how long a revocation is kept after the last token or certificate that it
	// refuses has expired. It is more than the tolerance for clocks when exp is checked.
	revocationSlack = 10 * time.Minute

	revocationsHeader = "pubsubd revocations 1"
)

// OpenRevocations reads the file at path, or makes it, and locks it until Close. tokens is how
// long a token may be valid. subjects is how long a token or certificate may be valid; 0: a
// revocation of a subject never ends. An error says what is wrong with the file, and where.
func OpenRevocations(path string, tokens, subjects time.Duration, log *zap.Logger, now time.Time) (*Revocations, error) {
	r := &Revocations{path: path, most: maxRevocations, log: log, times: make(map[revokee]int64)}
	r.prohibited.most, r.prohibited.of = maxProhibitions, make(map[string]Prohibitions)
	r.keep[ofToken] = tokens + revocationSlack
	if subjects > 0 {
		r.keep[ofSubject] = max(tokens, subjects) + revocationSlack
	}
	journal, found, err := durable.OpenJournal(durable.JournalConfig{
		Path: path, Header: revocationsHeader, Read: r.read, Records: r.records, Changed: r.changed,
	})
	if err != nil {
		return nil, fmt.Errorf("auth.revocations: %w", err)
	}
	r.journal = journal
	file := zap.String("file", path)
	if found.Torn > 0 {
		log.Warn("the last line of auth.revocations is incomplete and was dropped: the daemon or the system crashed before the revocation was acknowledged",
			file, zap.Int64("bytes", found.Torn))
	}
	r.prune(now)
	if !found.New {
		log.Info("auth.revocations was read", file, zap.Int("revocations", len(r.times)), zap.Int64("prohibitions", r.prohibited.count.Load()))
	}
	if found.Lost {
		log.Warn("the file of auth.revocations is missing: a daemon has used it, and if it had revocations, their tokens are accepted again; restore the file from a backup and restart the daemon", file)
	}
	if found.Empty {
		log.Warn("the file of auth.revocations was empty: if it had revocations before, their tokens are accepted again; restore the file from a backup and restart the daemon", file)
	}
	return r, nil
}

// read reads a record of the journal.
func (r *Revocations) read(record []byte) error {
	var v struct {
		Revocation
		prohibitionRecord
	}
	err := json.Unmarshal(record, &v)
	switch {
	case err == nil && v.Prohibited != "":
		r.prohibited.put(v.prohibitionRecord)
	case err != nil || (v.Subject == "") == (v.TokenID == ""):
		return errors.New("the line is not a revocation")
	default:
		r.put(v.Revocation)
	}
	return nil
}

// records returns the records of the revocations and prohibitions that count.
func (r *Revocations) records() [][]byte {
	records := slices.Collect(r.prohibited.records())
	for _, t := range r.counting() {
		records = append(records, t.record())
	}
	return records
}

// record returns what read reads.
func (v Revocation) record() []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: a revocation does not marshal: " + err.Error())
	}
	return text
}

// Close closes the file, for another daemon. It may be called again. After it, Add fails.
//
// If nothing is forbidden any more, Close first writes the file anew, so that a version that does not
// know prohibitions can read it.
func (r *Revocations) Close() {
	if r == nil {
		return
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	r.prohibited.scan(time.Now())
	if r.prohibited.recorded && r.prohibited.count.Load() == 0 {
		if err := r.journal.Compact(); err != nil {
			r.log.Warn("cannot remove the prohibitions that have ended from auth.revocations: a version that does not know them refuses the file", zap.Error(err))
		}
	}
	r.journal.Close()
}

// Add revokes a token by its id, or all tokens of a subject that were issued up to now. When
// it returns nil, the revocation is on disk and in force. The error is a *wire.Problem:
// invalid_request, overloaded if the list is full, or internal if the file cannot be written.
func (r *Revocations) Add(subject, tokenID string, now time.Time) error {
	switch {
	case r == nil:
		return problem.New(wire.CodeInvalidRequest, "set auth.revocations to the path of a new file, and restart the daemon",
			"the daemon has no file for revocations")
	case (subject == "") == (tokenID == ""):
		return problem.New(wire.CodeInvalidRequest, "send either a subject or a token id", "a revocation must have either a subject or a token id")
	case subject != "" && !isSubject(subject):
		return problem.New(wire.CodeInvalidRequest, fmt.Sprintf("a subject has at most %d bytes, without control characters", maxSubjectBytes), "no token can have this subject")
	case len(tokenID) > maxTokenIDBytes:
		return problem.New(wire.CodeInvalidRequest, "revoke the token's subject", "a token id must have at most %d bytes", maxTokenIDBytes)
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	r.prune(now)
	added := Revocation{Subject: subject, TokenID: tokenID, Time: now.UnixMilli()}
	was, again, free := r.find(added.of())
	switch {
	case again && was >= added.Time:
		return nil // the same millisecond, or the clock went back
	case again || free.IsZero():
	case free.Equal(never):
		return problem.New(wire.CodeOverloaded, "remove the authority of the certificates from tls.client_ca, or set tls.client_max_age so that revocations expire",
			"the list of revocations is full: it has %d, and none expires, because tls.client_max_age is not set", r.most)
	case free.After(now):
		return problem.New(wire.CodeOverloaded, "wait, or refuse all tokens: replace the keys of auth.keys",
			"the list of revocations is full: it has %d, and the next one expires at %s", r.most, free.UTC().Format(time.RFC3339)).Retry(free.Sub(now))
	}
	if err := r.journal.Append(added.record(), r.held()); err != nil {
		r.log.Error("cannot write auth.revocations", zap.Error(err))
		return problem.New(wire.CodeInternal, "correct the error, and revoke again", "the revocation could not be written to disk: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(added)
	return nil
}

// never is later than the end of any revocation.
var never = time.UnixMilli(math.MaxInt64)

// held returns how many records count.
func (r *Revocations) held() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.times) + r.prohibited.subjects()
}

// find returns when something was revoked, if it was. free is when the list has a place for
// another; zero: it has one.
func (r *Revocations) find(of revokee) (was int64, again bool, free time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.times) >= r.most {
		free = never
		for kind, order := range r.order {
			if len(order) > 0 && r.keep[kind] > 0 {
				if end := time.UnixMilli(order[0].Time).Add(r.keep[kind]); end.Before(free) {
					free = end
				}
			}
		}
	}
	was, again = r.times[of]
	return was, again, free
}

// Check notices that something else has changed, replaced or removed the file. Then it logs a
// warning and writes the file anew, because what Add has acknowledged must outlast the daemon.
// If that fails, as on a full disk, each later call tries again. It does not wait for Add.
func (r *Revocations) Check() {
	if r == nil || !r.writing.TryLock() {
		return
	}
	defer r.writing.Unlock()
	if r.journal.Check() {
		r.log.Info("auth.revocations is on disk again", zap.String("file", r.path), zap.Int("revocations", len(r.counting())))
	}
}

// changed warns that something else has changed the file.
func (r *Revocations) changed(had, has int64, err error) {
	r.log.Warn("another process has changed, replaced or removed the file of auth.revocations: the daemon writes it again; stop the daemon before you change the file",
		zap.String("file", r.path), zap.Int64("had_bytes", had), zap.Int64("has_bytes", has), zap.Int("revocations", len(r.counting())), zap.Error(err))
}

// counting forgets those that were revoked again later, and returns the others, the oldest first.
func (r *Revocations) counting() []Revocation {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Revocation, 0, len(r.times))
	for kind, order := range r.order {
		r.order[kind] = slices.DeleteFunc(order, func(v Revocation) bool { return r.times[v.of()] != v.Time })
		all = append(all, r.order[kind]...)
	}
	slices.SortStableFunc(all, func(a, b Revocation) int { return cmp.Compare(a.Time, b.Time) })
	return all
}

// put puts a revocation in force.
func (r *Revocations) put(v Revocation) {
	of := v.of()
	if was, ok := r.times[of]; !ok || was < v.Time {
		r.times[of] = v.Time
		r.order[of.kind()] = append(r.order[of.kind()], v)
	}
}

// prune drops the revocations of tokens and certificates that have all expired, and the
// prohibitions that have ended.
func (r *Revocations) prune(now time.Time) {
	r.prohibited.prune(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	for kind, order := range r.order {
		before, gone := now.Add(-r.keep[kind]).UnixMilli(), 0
		for ; gone < len(order); gone++ {
			of, at := order[gone].of(), order[gone].Time
			counts := r.times[of] == at
			if counts && (r.keep[kind] == 0 || at >= before) {
				break
			}
			if counts {
				delete(r.times, of)
			}
		}
		r.order[kind] = order[gone:]
	}
}

// Revoked reports whether the token or certificate of a grant is revoked. It does not allocate.
func (r *Revocations) Revoked(g *Grant) bool {
	if r == nil || g.Issued.IsZero() { // an API key, or anonymous
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.times) == 0 { // Fast path: nothing is revoked
		return false
	}
	if _, byID := r.times[revokee{tokenID: g.TokenID}]; byID {
		return true
	}
	at, ok := r.times[revokee{subject: g.Subject}]
	return ok && g.Issued.UnixMilli() <= at
}

// RevocationList answers GET /revocations?limit= on the admin listener: the newest
// revocations, the newest first, and the number of all.
type RevocationList struct {
	Held        int          `json:"held"` // revocations, listed or not
	Most        int          `json:"most"` // that the daemon holds; 0: it has no file for them
	Revocations []Revocation `json:"revocations"`
}

// A Revocation refuses the tokens of Subject that were issued up to Time, or the token
// TokenID. One of the two is set.
type Revocation struct {
	Subject string `json:"subject,omitempty"`
	TokenID string `json:"token_id,omitempty"`
	Time    int64  `json:"time"`            // Unix milliseconds
	Until   int64  `json:"until,omitempty"` // when it is dropped, because what it refuses has expired; Unix milliseconds; 0: never
}

// List returns the newest n revocations, the newest first, and how many there are.
func (r *Revocations) List(n int, now time.Time) RevocationList {
	list := RevocationList{Revocations: []Revocation{}}
	if r == nil {
		return list
	}
	r.prune(now)
	all := r.counting()
	list.Held, list.Most = len(all), r.most
	for i := len(all) - 1; i >= 0 && len(list.Revocations) < n; i-- {
		revoked := all[i]
		if keep := r.keep[revoked.of().kind()]; keep > 0 {
			revoked.Until = revoked.Time + keep.Milliseconds()
		}
		list.Revocations = append(list.Revocations, revoked)
	}
	return list
}

// Gauges adds the numbers of revocations and prohibitions, and their bounds.
func (r *Revocations) Gauges(g *metrics.Gauges, now time.Time) {
	if r == nil {
		return
	}
	r.prune(now)
	r.mu.RLock()
	defer r.mu.RUnlock()
	g.Limits = append(g.Limits, metrics.Limit{Name: "revocations", Most: r.most, InUse: len(r.times)},
		metrics.Limit{Name: "prohibitions", Most: r.prohibited.most, InUse: int(r.prohibited.count.Load())})
}
