package auth

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
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
// The file has a line for each revocation, the oldest first: the CRC-32C of the rest in eight
// hexadecimal digits, a space, and a JSON object.
//
//	pubsubd revocations 1
//	8a3f0c1e {"subject":"alice","time":1764043200000}
//	51d2b7aa {"token_id":"4f1c9a","time":1764043260000}
type Revocations struct {
	path string           // immutable, like the fields up to lock
	keep [2]time.Duration // by kind: how long a revocation is kept; 0: without end
	most int
	log  *zap.Logger
	lock *os.File // another daemon cannot open the file

	writing sync.Mutex  // held by Add, Check and Close; guards the next four fields
	file    appender    // nil: the next Add or Check writes the file anew
	written fs.FileInfo // of file, when it was opened or written last
	lines   int         // in the file
	bytes   int64       // in the file

	mu    sync.RWMutex      // guards the fields below; taken after writing, and never during I/O
	times map[revokee]int64 // when each was revoked last, in Unix milliseconds
	order [2][]timedRevokee // by kind, oldest first; those that were revoked again later are stale
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

type timedRevokee struct {
	revokee
	time int64
}

// An appender is what Revocations need of an *os.File.
type appender interface {
	io.WriteCloser
	Sync() error
	Stat() (fs.FileInfo, error)
}

const (
	// maxRevocations bounds the list: 100,000 take up to 60 MB.
	maxRevocations = 100_000

	// maxTokenIDBytes bounds the id of a revoked token.
	maxTokenIDBytes = 256

	// revocationSlack is how long a revocation is kept after the last token or certificate that it
	// refuses has expired. It is more than the tolerance for clocks when exp is checked.
	revocationSlack = 10 * time.Minute

	// maxStaleLines is how many lines that do not count any more the file may have, besides as
	// many as count.
	maxStaleLines = 1000

	revocationsHeader = "pubsubd revocations 1\n"
	maxRevocationLine = 4096
)

// OpenRevocations reads the file at path, or makes it, and locks it until Close. tokens is how
// long a token may be valid. subjects is how long a token or certificate may be valid; 0: a
// revocation of a subject never ends. An error says what is wrong with the file, and where.
func OpenRevocations(path string, tokens, subjects time.Duration, log *zap.Logger, now time.Time) (*Revocations, error) {
	r := &Revocations{path: path, most: maxRevocations, log: log, times: make(map[revokee]int64)}
	r.keep[ofToken] = tokens + revocationSlack
	if subjects > 0 {
		r.keep[ofSubject] = max(tokens, subjects) + revocationSlack
	}
	if err := r.open(now); err != nil {
		r.Close()
		return nil, fmt.Errorf("auth.revocations: %w", err)
	}
	return r, nil
}

func (r *Revocations) open(now time.Time) error {
	_, unlocked := os.Stat(r.path + durable.LockSuffix)
	lock, err := durable.Lock(r.path, false)
	if errors.Is(err, durable.ErrLocked) {
		return fmt.Errorf("%s is in use by another daemon: wait until it has ended, or give each daemon its own file", r.path)
	}
	if err != nil {
		return fmt.Errorf("%w: name a file in a folder that the daemon can write to", err)
	}
	r.lock = lock
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if unlocked == nil {
			r.log.Warn("the file of auth.revocations is missing: a daemon has used it, and if it had revocations, their tokens are accepted again; restore the file from a backup and restart the daemon",
				zap.String("file", r.path))
		}
		return r.rewrite() // so that a file that cannot be written is known now
	}
	if err != nil {
		return fmt.Errorf("%w: let the daemon read and write it", err)
	}
	r.file = f
	whole, torn, err := r.read(f)
	if err == nil {
		r.bytes = whole
	}
	if err != nil {
		return fmt.Errorf("%s, %w", r.path, err)
	}
	if torn > 0 {
		r.log.Warn("the last line of auth.revocations is incomplete and was dropped: the daemon or the system crashed before the revocation was acknowledged",
			zap.String("file", r.path), zap.Int64("bytes", torn))
		if err := errors.Join(f.Truncate(whole), f.Sync()); err != nil {
			return err
		}
	}
	if r.written, err = f.Stat(); err != nil {
		return err
	}
	r.prune(now)
	r.log.Info("auth.revocations was read", zap.String("file", r.path), zap.Int("revocations", len(r.times)))
	if whole == 0 {
		r.log.Warn("the file of auth.revocations was empty: if it had revocations before, their tokens are accepted again; restore the file from a backup and restart the daemon",
			zap.String("file", r.path))
		return r.rewrite()
	}
	return nil
}

// read reads all lines. It returns how many bytes they have, and how many follow that are no
// whole line: the end of a write that a crash cut off.
func (r *Revocations) read(f io.Reader) (whole, torn int64, err error) {
	in := bufio.NewReaderSize(f, maxRevocationLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && (n > 1 || len(line) == 0):
			return whole, int64(len(line)), nil
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull):
			return 0, 0, err
		case n == 1 && string(line) != revocationsHeader:
			return 0, 0, fmt.Errorf("line 1: the file is not a list of revocations: name another one, which the daemon makes")
		case n > 1:
			if err := r.readLine(line); err != nil {
				return 0, 0, fmt.Errorf("line %d: %w: restore the file from a backup, or remove the line and revoke again what it revoked", n, err)
			}
		}
		whole += int64(len(line))
	}
}

func (r *Revocations) readLine(line []byte) error {
	sum, text, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
	if sum != checksum([]byte(text)) {
		return errors.New("the line is damaged: its checksum is wrong")
	}
	var v Revocation
	if err := json.Unmarshal([]byte(text), &v); err != nil || (v.Subject == "") == (v.TokenID == "") {
		return errors.New("the line is not a revocation")
	}
	r.lines++
	r.put(timedRevokee{revokee{v.Subject, v.TokenID}, v.Time})
	return nil
}

func checksum(text []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

// lineOf returns a line of the file.
func lineOf(t timedRevokee) []byte {
	text, err := json.Marshal(Revocation{Subject: t.subject, TokenID: t.tokenID, Time: t.time})
	if err != nil {
		panic("BUG: a revocation does not marshal: " + err.Error())
	}
	return fmt.Appendf(nil, "%s %s\n", checksum(text), text)
}

// Close closes the file, for another daemon. It may be called again. After it, Add fails.
func (r *Revocations) Close() {
	if r == nil {
		return
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	r.closeFile()
	if r.lock != nil {
		r.lock.Close() // nothing was written
		r.lock = nil
	}
}

func (r *Revocations) closeFile() {
	if r.file != nil {
		_ = r.file.Close() // each line was synced
		r.file = nil
	}
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
	added := timedRevokee{revokee{subject, tokenID}, now.UnixMilli()}
	switch was, again, free := r.find(added.revokee); {
	case again && was >= added.time:
		return nil // the same millisecond, or the clock went back
	case again || free.IsZero():
	case free.Equal(never):
		return problem.New(wire.CodeOverloaded, "remove the authority of the certificates from tls.client_ca, or set tls.client_max_age so that revocations expire",
			"the list of revocations is full: it has %d, and none expires, because tls.client_max_age is not set", r.most)
	case free.After(now):
		return problem.New(wire.CodeOverloaded, "wait, or refuse all tokens: replace the keys of auth.keys",
			"the list of revocations is full: it has %d, and the next one expires at %s", r.most, free.UTC().Format(time.RFC3339)).Retry(free.Sub(now))
	}
	if err := r.write(added); err != nil {
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

// find returns when something was revoked, if it was. free is when the list has a place for
// another; zero: it has one.
func (r *Revocations) find(of revokee) (was int64, again bool, free time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.times) >= r.most {
		free = never
		for kind, order := range r.order {
			if len(order) > 0 && r.keep[kind] > 0 {
				if end := time.UnixMilli(order[0].time).Add(r.keep[kind]); end.Before(free) {
					free = end
				}
			}
		}
	}
	was, again = r.times[of]
	return was, again, free
}

// write appends a revocation to the file and syncs the file. After an error, and if many of
// the file's lines do not count any more, it writes the file anew.
func (r *Revocations) write(added timedRevokee) error {
	r.mu.RLock()
	counting := len(r.times)
	r.mu.RUnlock()
	if r.lock != nil && r.file != nil {
		r.restore() // before the change cannot be told from this write
	}
	switch {
	case r.lock == nil:
		return fs.ErrClosed
	case r.file == nil || r.lines > 2*counting+maxStaleLines:
		return r.rewrite(added)
	}
	line := lineOf(added)
	_, err := r.file.Write(line)
	if err == nil {
		err = r.file.Sync()
	}
	if err == nil {
		r.written, err = r.file.Stat()
	}
	if err != nil {
		r.closeFile() // half of the line may be in the file
		return err
	}
	r.lines++
	r.bytes += int64(len(line))
	return nil
}

// Check notices that something else has changed, replaced or removed the file. Then it logs a
// warning and writes the file anew, because what Add has acknowledged must outlast the daemon.
// If that fails, as on a full disk, each later call tries again. It does not wait for Add.
func (r *Revocations) Check() {
	if r == nil || !r.writing.TryLock() {
		return
	}
	defer r.writing.Unlock()
	switch {
	case r.lock == nil: // closed
	case r.file != nil:
		r.restore()
	case r.rewrite() == nil:
		r.log.Info("auth.revocations is on disk again", zap.String("file", r.path), zap.Int("revocations", r.lines))
	}
}

// restore writes the file anew, with a warning, if something else has changed it.
func (r *Revocations) restore() {
	is, err := os.Stat(r.path)
	size := int64(0)
	if err == nil {
		size = is.Size()
	}
	if err == nil && size == r.bytes && is.ModTime().Equal(r.written.ModTime()) && os.SameFile(is, r.written) {
		return
	}
	had := r.bytes
	err = r.rewrite()
	r.log.Warn("another process has changed, replaced or removed the file of auth.revocations: the daemon writes it again; stop the daemon before you change the file",
		zap.String("file", r.path), zap.Int64("had_bytes", had), zap.Int64("has_bytes", size), zap.Int("revocations", r.lines), zap.Error(err))
}

// rewrite writes the file with the revocations that count, and with those that are added, and
// opens it.
func (r *Revocations) rewrite(added ...timedRevokee) error {
	r.closeFile()
	counting := r.counting()
	bytes := int64(len(revocationsHeader))
	err := durable.Write(r.path, func(w io.Writer) error {
		out := bufio.NewWriter(w)
		_, _ = out.WriteString(revocationsHeader) // Flush returns the error
		for _, t := range slices.Concat(counting, added) {
			n, _ := out.Write(lineOf(t))
			bytes += int64(n)
		}
		return out.Flush()
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err // the next Add tries again
	}
	r.file, r.lines, r.bytes = f, len(counting)+len(added), bytes
	if r.written, err = f.Stat(); err != nil {
		r.closeFile()
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order = [2][]timedRevokee{}
	for _, t := range counting {
		r.order[t.kind()] = append(r.order[t.kind()], t)
	}
	return nil
}

// counting returns the revocations that count, the oldest first.
func (r *Revocations) counting() []timedRevokee {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]timedRevokee, 0, len(r.times))
	for _, order := range r.order {
		for _, t := range order {
			if r.times[t.revokee] == t.time {
				all = append(all, t)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b timedRevokee) int { return cmp.Compare(a.time, b.time) })
	return all
}

// put puts a revocation in force.
func (r *Revocations) put(t timedRevokee) {
	if was, ok := r.times[t.revokee]; !ok || was < t.time {
		r.times[t.revokee] = t.time
		r.order[t.kind()] = append(r.order[t.kind()], t)
	}
}

// prune drops the revocations of tokens and certificates that have all expired.
func (r *Revocations) prune(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for kind, order := range r.order {
		before, gone := now.Add(-r.keep[kind]).UnixMilli(), 0
		for ; gone < len(order); gone++ {
			t := order[gone]
			counts := r.times[t.revokee] == t.time
			if counts && (r.keep[kind] == 0 || t.time >= before) {
				break
			}
			if counts {
				delete(r.times, t.revokee)
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
		t := all[i]
		revoked := Revocation{Subject: t.subject, TokenID: t.tokenID, Time: t.time}
		if keep := r.keep[t.kind()]; keep > 0 {
			revoked.Until = t.time + keep.Milliseconds()
		}
		list.Revocations = append(list.Revocations, revoked)
	}
	return list
}

// Gauges adds the number of revocations and their bound.
func (r *Revocations) Gauges(g *metrics.Gauges, now time.Time) {
	if r == nil {
		return
	}
	r.prune(now)
	r.mu.RLock()
	defer r.mu.RUnlock()
	g.Limits = append(g.Limits, metrics.Limit{Name: "revocations", Most: r.most, InUse: len(r.times)})
}
