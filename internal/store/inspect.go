package store

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A snapshot is the folder of a log as of one instant. It has all files open, so a daemon
// may write more, and remove files, while the snapshot is read. Nothing can be changed.
type snapshot struct {
	dir   string
	names []string
	files map[string]*os.File
	sizes map[string]int64
}

// A Snapshot is an FS that is only read. Whoever opens it must close it.
type Snapshot interface {
	FS
	io.Closer
}

// OpenSnapshot returns what the folder of a log has now. A daemon may use the log meanwhile.
func OpenSnapshot(dir string) (Snapshot, error) {
	for attempt := 0; ; attempt++ {
		s := &snapshot{dir: dir, files: make(map[string]*os.File), sizes: make(map[string]int64)}
		err := s.open()
		if err == nil {
			return s, nil
		}
		_ = s.Close() // nothing was written
		if !errors.Is(err, os.ErrNotExist) || len(s.names) == 0 || attempt == snapshotAttempts {
			return nil, err
		}
	}
}

// snapshotAttempts is how often files may disappear while they are opened: a daemon removes
// files only after a checkpoint.
const snapshotAttempts = 100

// open opens all files. A daemon that removes one has another with its entries.
func (s *snapshot) open() (err error) {
	if s.names, err = (osFS{s.dir}).List(); err != nil {
		return err
	}
	for _, name := range slices.Backward(s.names) { // the mark before the segments, which grow
		if KindOf(name) == KindOther && name != lockName { // a start does not read it
			info, err := os.Stat(filepath.Join(s.dir, name))
			if err != nil {
				return err
			}
			s.sizes[name] = info.Size()
			continue
		}
		f, err := os.Open(filepath.Join(s.dir, name))
		if err != nil {
			return err
		}
		s.files[name] = f
		info, err := f.Stat()
		if err != nil {
			return err
		}
		s.sizes[name] = info.Size()
	}
	return nil
}

func (s *snapshot) Close() error {
	for _, f := range s.files {
		_ = f.Close() // nothing was written
	}
	return nil
}

func (s *snapshot) List() ([]string, error) { return s.names, nil }

func (s *snapshot) Open(name string) (FileReader, error) {
	if _, ok := s.sizes[name]; !ok {
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
	return snapshotFile{io.NewSectionReader(s.files[name], 0, s.sizes[name])}, nil
}

var errReadOnly = errors.New("BUG: a snapshot of a log is only read")

func (s *snapshot) Create(string) (FileWriter, error) { return nil, errReadOnly }
func (s *snapshot) Rename(string, string) error       { return errReadOnly }
func (s *snapshot) Remove(string) error               { return errReadOnly }
func (s *snapshot) SyncDir() error                    { return errReadOnly }

// Lock locks nothing: nobody changes what a snapshot has.
func (s *snapshot) Lock() (io.Closer, error) { return io.NopCloser(nil), nil }

type snapshotFile struct{ *io.SectionReader }

func (f snapshotFile) Size() (int64, error) { return f.SectionReader.Size(), nil }
func (f snapshotFile) Close() error         { return nil }

// Damage is a place of a log that a start cannot read, though no crash can be the cause.
type Damage struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Why    string `json:"why"`
}

func (d Damage) String() string { return fmt.Sprintf("%s, byte %d: %s", d.File, d.Offset, d.Why) }

// Contents are what the folder of a log has, as a start reads it.
type Contents struct {
	Files    []FileContents `json:"files"`
	Epoch    string         `json:"epoch"`
	Last     uint64         `json:"last"`             // number of the newest entry
	Newest   int64          `json:"newest,omitempty"` // Unix milliseconds of the newest message; 0: none
	Lease    uint64         `json:"lease"`            // every number that was used is below it
	Topics   int            `json:"topics"`
	Messages int            `json:"messages"`
	Bytes    int64          `json:"bytes"` // of the messages
	Keys     int            `json:"idempotency_keys"`
	Clean    bool           `json:"clean"`               // the last daemon stopped cleanly
	SameBoot bool           `json:"same_boot"`           // the kernel runs since before
	Cut      int64          `json:"cut_bytes,omitempty"` // incomplete records at the end, which a start ignores
	Lost     uint64         `json:"lost,omitempty"`      // a start announces that entries up to this number may be lost
	Refused  string         `json:"refused,omitempty"`   // why a start is refused; empty: it is not
	Damage   []Damage       `json:"damage,omitempty"`    // likewise, each place
}

// FileContents are what one file has.
type FileContents struct {
	Name    string  `json:"name"`
	Kind    string  `json:"kind"` // segment, checkpoint, mark or other
	Bytes   int64   `json:"bytes"`
	After   uint64  `json:"after,omitempty"` // it continues after this entry; a checkpoint has the entries up to it
	Entries int     `json:"entries"`
	First   uint64  `json:"first,omitempty"` // number of the first entry of a segment
	Last    uint64  `json:"last,omitempty"`
	Lease   uint64  `json:"lease,omitempty"` // of the header
	Lost    uint64  `json:"lost,omitempty"`  // entries up to this number may be lost
	Boot    string  `json:"boot,omitempty"`  // the kernel's boot id
	Closed  bool    `json:"closed,omitempty"`
	Bad     *Damage `json:"bad,omitempty"` // where it stops to be readable
}

// The kinds of files.
const (
	KindSegment    = "segment"
	KindCheckpoint = "checkpoint"
	KindMark       = "mark" // how far the log reaches
	KindOther      = "other"
)

// Inspect reads all files of a log, and changes nothing. If a start would be refused,
// Topics and the like are what Repair would keep.
func Inspect(files FS, bootID string) (Contents, error) {
	c := Contents{}
	names, err := files.List()
	if err != nil {
		return c, err
	}
	for _, name := range names {
		f, err := inspectFile(files, name)
		if err != nil {
			return c, err
		}
		c.Files = append(c.Files, f)
	}
	t, w := newTally(), NewWAL(WALConfig{FS: files, BootID: bootID}, nil)
	r, err := readOnly(w, t.apply)
	if err != nil {
		c.Refused = err.Error()
		t, w = newTally(), NewWAL(w.cfg, nil)
		w.repairs = true
		if r, err = readOnly(w, t.apply); err != nil {
			return c, nil // there is nothing to keep
		}
	}
	c.Epoch, c.Last, c.Lease, c.Clean, c.SameBoot = r.Epoch, r.Last, w.seq.lease, r.Clean, r.SameBoot
	c.Cut, c.Lost, c.Damage = r.Cut, r.Lost, r.Damage
	for _, t := range t.topics {
		if !t.forgotten {
			c.Topics, c.Messages, c.Bytes = c.Topics+1, c.Messages+t.messages, c.Bytes+t.bytes
		}
	}
	c.Keys, c.Newest = t.keys, t.newest
	return c, nil
}

// KindOf returns the kind of a file by its name.
func KindOf(name string) string {
	kind, _, _ := kindOf(name)
	return kind
}

func kindOf(name string) (kind, magic string, number uint64) {
	if n, ok := numberOf(name, segmentSuffix); ok {
		return KindSegment, segmentMagic, n
	}
	if n, ok := numberOf(name, checkpointSuffix); ok {
		return KindCheckpoint, checkpointMagic, n
	}
	if name == markName {
		return KindMark, markMagic, 0
	}
	return KindOther, "", 0
}

// inspectFile returns what a file has, and where it has a bad record.
func inspectFile(files FS, name string) (c FileContents, err error) {
	kind, magic, number := kindOf(name)
	c.Name, c.Kind = name, kind
	if kind == KindOther {
		f, err := files.Open(name)
		if err != nil {
			return c, err
		}
		c.Bytes, err = f.Size()
		return c, errors.Join(err, f.Close())
	}
	l, _, err := openFile(files, name, magic, number)
	if l != nil {
		c.Bytes = l.size
	}
	if err == nil {
		defer l.close()
		err = l.inspect(&c)
	}
	var bad *badRecord
	if errors.As(err, &bad) {
		c.Bad, err = &Damage{bad.file, bad.at, bad.why}, nil
	}
	return c, err
}

// inspect reads all records.
func (l *logFile) inspect(c *FileContents) error {
	c.After, c.Lease, c.Lost, c.Boot = l.prev, l.lease, l.lost, l.boot
	if c.Kind == KindCheckpoint {
		c.After = l.number
	}
	if c.Kind == KindMark {
		c.Last = l.synced
	}
	for {
		r, err := l.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case r.kind.IsEntry() && c.Kind == KindCheckpoint:
			c.Entries++
		case r.kind.IsEntry():
			if c.Entries++; c.Entries == 1 {
				c.First = r.number
			}
			c.Last = r.number
		}
		c.Closed = r.kind == kindClosed
	}
}

// A tally counts what the entries of a log leave, without the messages.
type tally struct {
	topics map[string]*topicTally
	keys   int
	newest int64 // see Contents
}

type topicTally struct {
	head      uint64 // of the newest message
	gone      uint64 // messages up to this offset are not held any more
	forgotten bool
	messages  int
	bytes     int64
}

func newTally() *tally { return &tally{topics: make(map[string]*topicTally)} }

func (c *tally) topic(name string) *topicTally {
	t := c.topics[name]
	if t == nil {
		t = &topicTally{}
		c.topics[name] = t
	}
	return t
}

// apply counts an entry. Those that a topic of a checkpoint has already come again.
func (c *tally) apply(e broker.Entry) error {
	at := e.Message.Position
	c.newest = max(c.newest, e.Message.Time)
	switch e.Op {
	case broker.OpPublish:
		if t := c.topic(at.Topic); at.Offset > max(t.head, t.gone) {
			t.head, t.forgotten = at.Offset, false
			t.messages, t.bytes = t.messages+1, t.bytes+int64(len(e.Message.Data))
		}
		if e.Key != (broker.Key{}) {
			c.keys++
		}
	case broker.OpDelete, broker.OpLost:
		c.topic(at.Topic).remove(at.Offset)
	case broker.OpForget:
		if t := c.topic(at.Topic); t.head <= e.State.Lost {
			t.remove(e.State.Lost)
			t.forgotten = true
		}
	case broker.OpTopic:
		t := c.topic(at.Topic)
		t.gone = max(t.gone, e.State.Lost)
	case broker.OpKey:
		c.keys++
	}
	return nil
}

// remove counts all messages up to an offset as gone. No newer one came before.
func (t *topicTally) remove(upTo uint64) {
	if upTo > max(t.head, t.gone) || upTo == t.head {
		t.gone, t.messages, t.bytes = upTo, 0, 0
	}
}

// Export writes the messages of a log as NDJSON frames, those of a topic in order. It changes
// nothing. Messages that were deleted, or whose own time to live is over, are left out.
// Limits of histories are not applied: the log does not know them.
func Export(cfg WALConfig, to io.Writer, now time.Time) (messages int, err error) {
	t := newTally()
	if _, err := readOnly(NewWAL(cfg, nil), t.apply); err != nil {
		return 0, err
	}
	var b []byte
	_, err = readOnly(NewWAL(cfg, nil), func(e broker.Entry) error {
		if e.Op != broker.OpPublish {
			return nil
		}
		at := e.Message.Position
		topic := t.topics[at.Topic]
		if at.Offset <= topic.gone || e.TTL > 0 && !time.UnixMilli(e.Message.Time).Add(e.TTL).After(now) {
			return nil
		}
		topic.gone = at.Offset // it comes only once
		messages++
		b = wire.Content{Message: e.Message}.AppendJSON(b[:0])
		_, err := to.Write(b)
		return err
	})
	return messages, err
}

// Repair makes a log readable again: it keeps what can be read, and announces the rest as
// lost. It makes a checkpoint, and gives the old files another name. The memory must hold all
// messages of the log.
func Repair(cfg WALConfig) (found Recovery, err error) {
	var w *WAL
	now := time.Now()
	cfg.Recovered = func(r Recovery) { found = r }
	broker.NewWithLog(unbounded, metrics.New(""), now, func(b *broker.Broker) broker.Log {
		w = NewWAL(cfg, b)
		return w
	})
	w.repairs = true
	if err := w.open(w.applyHere, now); err != nil {
		return found, err
	}
	return found, w.close(now)
}

// unbounded keeps all messages of a log: a repair does not know the limits of the daemon,
// which applies them when it starts.
var unbounded = broker.Config{
	HistoryMessages: math.MaxInt32, HistoryBytes: math.MaxInt / 4, HistoryAge: 100 * 365 * 24 * time.Hour,
	MemoryBudget: math.MaxInt / 4, MaxTopics: math.MaxInt32, IdempotencyKeys: math.MaxInt32, IdempotencyWindow: 24 * time.Hour,
}

// readOnly reads a log, and changes nothing.
func readOnly(w *WAL, apply func(broker.Entry) error) (Recovery, error) {
	lock, err := w.fs.Lock()
	if err != nil {
		return Recovery{}, err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	w.apply = apply
	r := &recovering{wal: w, readOnly: true}
	err = r.read()
	w.seq.lease = r.lease
	if err != nil {
		return r.Recovery, err
	}
	if r.newest != nil && r.mayHaveLost() {
		r.Lost = r.lease
	}
	return r.Recovery, nil
}
