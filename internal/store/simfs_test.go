package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/durable"
)

// A simFS is a folder in memory. It forgets what was not synced, as a disk does, and
// fails when it is told to. One goroutine uses it.
//
// It is as bad as POSIX allows:
//   - A loss of power keeps, drops, tears, zeroes and reorders each sector that was not
//     synced. The length of a file may outlast its content, and the reverse.
//   - A name that was created, renamed or removed is durable only after SyncDir.
//   - A sync that fails drops the changes that it should have written. The next sync
//     succeeds, and does not write them.
type simFS struct {
	rng    *rand.Rand
	names  map[string]*simFile // what processes see
	disk   map[string]*simFile // what a loss of power leaves
	moves  []move              // changes of names since the last SyncDir, oldest first
	locked bool

	down       error // the process has ended, and every call fails; nil: it runs
	untilCrash int   // calls until the process is killed; 0: it is not killed
	faults     map[fault]int
	full       bool   // each write fails with ENOSPC
	space      int    // size of the disk; 0: not bounded
	beside     func() // what another goroutine of the process does during a call; nil: nothing
	bugs       fsBugs
	created    bool // this process has created a file
	reverted   bool // a file of this process has lost what was written

	injected map[string]int // number of faults by kind
	say      func(format string, args ...any)
}

// fsBugs are bugs of the log, planted in what it asks of the file system.
type fsBugs struct {
	overwrites  bool // the first segment of a start replaces the newest one
	removesSoon bool // segments are removed for good before the name of the checkpoint is durable
	unsynced    kind // the sync after a record of this kind is left out
	hidesMark   bool // the mark is not read

	noSpace func(name string) bool // a file cannot be created; nil: each can
}

// A simFile is the content of a file, whatever its names.
type simFile struct {
	cache []byte   // what processes see
	disk  []byte   // what was synced
	dirty []change // since the last sync, oldest first

	skipsSync bool // see fsBugs.unsynced
}

// A change is one write, or a truncation.
type change struct {
	at   int
	data []byte // nil: the file is cut at the offset
}

// A move is one change of names.
type move struct {
	from, to string // from is empty for a new name; to is empty for a removed one
	file     *simFile
}

// A fault is the kind of a call that fails.
type fault string

// The kinds of calls that can fail.
const (
	faultCreate   fault = "create"
	faultOpen     fault = "open"
	faultRead     fault = "read"
	faultWrite    fault = "write"
	faultSync     fault = "sync"
	faultTruncate fault = "truncate"
	faultRename   fault = "rename"
	faultRemove   fault = "remove"
	faultList     fault = "list"
	faultSyncDir  fault = "sync folder"
)

var allFaults = []fault{
	faultCreate, faultOpen, faultRead, faultWrite, faultSync, faultTruncate, faultRename, faultRemove, faultList, faultSyncDir,
}

// killed is the panic that ends a process within a call.
type killed struct{}

var errDown = errors.New("the process has ended")

func newSimFS(rng *rand.Rand) *simFS {
	return &simFS{
		rng: rng, names: make(map[string]*simFile), disk: make(map[string]*simFile), faults: make(map[fault]int),
		injected: make(map[string]int), say: func(string, ...any) {},
	}
}

// arm has the n-th call of a kind fail from now on.
func (s *simFS) arm(f fault, n int) { s.faults[f] = n }

// heal ends all faults.
func (s *simFS) heal() { clear(s.faults); s.full, s.space = false, 0 }

// enter begins a call. It panics if the process is killed before the call.
func (s *simFS) enter(f fault, name string) error {
	if s.down != nil {
		return s.down
	}
	if name != failedSyncName && s.isKilled() {
		s.die(string(f) + " " + name)
	}
	left, armed := s.faults[f]
	switch {
	case !armed:
		return nil
	case left > 1:
		s.faults[f] = left - 1
		return nil
	}
	delete(s.faults, f)
	s.injected[string(f)+": EIO"]++
	s.say("    %s %s fails: EIO", f, name)
	return &fs.PathError{Op: string(f), Path: name, Err: syscall.EIO}
}

// isKilled counts one call.
func (s *simFS) isKilled() bool {
	if s.untilCrash == 0 {
		return false
	}
	s.untilCrash--
	return s.untilCrash == 0
}

func (s *simFS) die(where string) {
	s.say("    the process is killed at %s", where)
	s.injected["killed at "+where[:max(0, bytes.IndexByte([]byte(where+" "), ' '))]]++
	s.down = errDown
	panic(killed{})
}

// kill ends the process. What it wrote stays.
func (s *simFS) kill() { s.down, s.locked = errDown, false }

// boot begins another process.
func (s *simFS) boot() {
	s.down, s.untilCrash, s.locked, s.created, s.reverted = nil, 0, false, false, false
}

// losePower ends the process and the machine.
func (s *simFS) losePower() {
	s.kill()
	kept := s.keptMoves()
	for _, m := range kept {
		m.apply(s.disk)
	}
	s.moves = nil
	s.names = maps.Clone(s.disk)
	how := s.rng.IntN(outcomes)
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		f := s.names[name]
		if had := len(f.cache); len(f.dirty) > 0 {
			f.disk = s.outcome(f, how)
			s.say("    %s had %d bytes; %d are left", name, had, len(f.disk))
		}
		f.dirty = nil
		f.cache = bytes.Clone(f.disk)
	}
	s.injected["power: "+outcomeNames[how]]++
}

// keptMoves chooses the changes of names that outlast a loss of power.
func (s *simFS) keptMoves() (kept []move) {
	switch s.rng.IntN(4) {
	case 0:
		return s.moves
	case 1:
		return nil
	case 2:
		kept = s.moves[:s.rng.IntN(len(s.moves)+1)]
	default:
		for _, m := range s.moves {
			if s.rng.IntN(2) == 0 {
				kept = append(kept, m)
			}
		}
	}
	if n := len(s.moves) - len(kept); n > 0 {
		s.injected["power: names lost"] += n
	}
	return kept
}

func (m move) apply(names map[string]*simFile) {
	if m.from != "" && (m.to == "" || names[m.from] == m.file) {
		delete(names, m.from)
	}
	if m.to != "" {
		names[m.to] = m.file
	}
}

// The outcomes of changes that were not synced.
const (
	keepAll = iota
	dropAll
	keepFirst // a prefix, torn at any byte
	scatter   // each sector for itself, in any order
	scatterZeros
	outcomes
)

var outcomeNames = [outcomes]string{"all kept", "all dropped", "torn", "sectors dropped", "sectors zeroed"}

const sector = 512

// outcome returns what is on disk after the changes were written in part.
func (s *simFS) outcome(f *simFile, how int) []byte {
	disk := bytes.Clone(f.disk)
	switch how {
	case dropAll:
		return disk
	case keepFirst:
		n := s.rng.IntN(len(f.dirty) + 1)
		disk = applyAll(disk, f.dirty[:n])
		if n < len(f.dirty) {
			torn := f.dirty[n]
			if torn.data != nil {
				torn.data = torn.data[:s.rng.IntN(len(torn.data)+1)]
				disk = torn.apply(disk)
			}
		}
		return disk
	case scatter, scatterZeros:
		return s.scattered(f, how == scatterZeros)
	}
	return applyAll(disk, f.dirty)
}

// scattered writes some sectors. The length is one that the file had since the last sync, or
// any between.
func (s *simFS) scattered(f *simFile, zeros bool) []byte {
	lengths, longest := []int{len(f.disk)}, len(f.disk)
	for _, c := range f.dirty {
		end := c.at + len(c.data)
		lengths = append(lengths, end)
		longest = max(longest, end)
	}
	length := lengths[s.rng.IntN(len(lengths))]
	if s.rng.IntN(3) == 0 {
		length = min(len(f.disk), longest) + s.rng.IntN(longest-min(len(f.disk), longest)+1)
	}
	all := make([]byte, longest)
	copy(all, f.disk)
	rate := 1 + s.rng.IntN(20) // one in so many sectors is lost
	for _, c := range f.dirty {
		for from := c.at; from < c.at+len(c.data); {
			to := min((from/sector+1)*sector, c.at+len(c.data))
			piece := c.data[from-c.at : to-c.at]
			switch {
			case s.rng.IntN(rate) > 0:
				copy(all[from:], piece)
			case s.rng.IntN(3) == 0: // torn
				copy(all[from:], piece[:s.rng.IntN(len(piece))])
			case zeros:
				clear(all[from:to])
			}
			from = to
		}
	}
	return all[:length]
}

func applyAll(content []byte, changes []change) []byte {
	for _, c := range changes {
		content = c.apply(content)
	}
	return content
}

// apply makes the change. Bytes that were never written are zero.
func (c change) apply(content []byte) []byte {
	end := c.at + len(c.data)
	for len(content) < end {
		content = append(content, make([]byte, end-len(content))...)
	}
	if c.data == nil {
		return content[:end]
	}
	copy(content[c.at:], c.data)
	return content
}

func (s *simFS) move(m move) {
	m.apply(s.names)
	s.moves = append(s.moves, m)
}

// Create creates a file. Its name must be new. It always makes the note of a failed sync:
// if the process is killed just before, nobody can know of the failure.
func (s *simFS) Create(name string) (FileWriter, error) {
	isNote := name == failedSyncName && s.down == nil
	if err := s.enter(faultCreate, name); !isNote && err != nil {
		return nil, err
	}
	if s.bugs.noSpace != nil && s.bugs.noSpace(name) || !isNote && s.isFull(0) && s.rng.IntN(2) == 0 {
		s.injected["create: ENOSPC"]++
		return nil, &fs.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	if s.names[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	if s.bugs.overwrites && !s.created {
		s.created = true
		s.removeNewest()
	}
	f := &simFile{}
	s.move(move{to: name, file: f})
	return &simHandle{s, f, name, false}, nil
}

// Open opens a file for reading.
func (s *simFS) Open(name string) (FileReader, error) {
	if err := s.enter(faultOpen, name); err != nil {
		return nil, err
	}
	f := s.names[name]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &simReader{&simHandle{s, f, name, false}, 0}, nil
}

// Rename renames a file. It replaces one that has the new name.
func (s *simFS) Rename(from, to string) error {
	s.meanwhile()
	if err := s.enter(faultRename, from); err != nil {
		return err
	}
	f := s.names[from]
	if f == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	s.move(move{from, to, f})
	return nil
}

// Remove removes a name.
func (s *simFS) Remove(name string) error {
	s.meanwhile()
	if err := s.enter(faultRemove, name); err != nil {
		return err
	}
	f := s.names[name]
	if f == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	m := move{from: name, file: f}
	if s.move(m); s.bugs.removesSoon {
		m.apply(s.disk) // before the names that were changed earlier
	}
	return nil
}

// List returns the names, in order.
func (s *simFS) List() ([]string, error) {
	if err := s.enter(faultList, "folder"); err != nil {
		return nil, err
	}
	names := sortedKeys(s.names)
	if s.bugs.hidesMark {
		names = slices.DeleteFunc(names, func(name string) bool { return name == markName })
	}
	return names, nil
}

// newestSegment returns the name of the newest segment, or "".
func (s *simFS) newestSegment() string {
	for _, name := range slices.Backward(sortedKeys(s.names)) {
		if strings.HasSuffix(name, segmentSuffix) {
			return name
		}
	}
	return ""
}

// removeNewest removes the newest segment.
func (s *simFS) removeNewest() {
	if name := s.newestSegment(); name != "" {
		delete(s.names, name)
		delete(s.disk, name)
	}
}

// SyncDir makes the names durable. If it fails, some of the changes are durable.
func (s *simFS) SyncDir() error {
	n := len(s.moves)
	s.meanwhile()
	err := s.enter(faultSyncDir, "folder")
	if s.down != nil {
		return err
	}
	n = min(n, len(s.moves)) // less if another call has synced the folder meanwhile
	if s.bugs.removesSoon {
		n = slices.IndexFunc(append(slices.Clone(s.moves), move{from: "rename", to: "end"}), func(m move) bool { return m.from != "" && m.to != "" })
	}
	if err != nil {
		n = s.rng.IntN(n + 1)
	}
	for _, m := range s.moves[:n] {
		m.apply(s.disk)
	}
	s.moves = slices.Clone(s.moves[n:])
	return err
}

// isFull reports whether the disk has no space for so many bytes more.
func (s *simFS) isFull(bytes int) bool {
	if s.full || s.space == 0 {
		return s.full
	}
	for _, f := range s.names {
		bytes += len(f.cache)
	}
	return bytes > s.space
}

// meanwhile has other goroutines of the process do something during a call.
func (s *simFS) meanwhile() {
	if beside := s.beside; beside != nil {
		s.beside = nil // they have calls of their own
		defer func() { s.beside = beside }()
		beside()
	}
}

// A simHandle is a file that is open for writing at its end.
type simHandle struct {
	fs     *simFS
	file   *simFile
	name   string
	closed bool
}

// Write appends. A process that is killed meanwhile has written any part.
func (h *simHandle) Write(p []byte) (n int, err error) {
	s := h.fs
	switch {
	case s.down != nil:
		return 0, s.down
	case h.closed:
		return 0, fs.ErrClosed
	case s.isKilled():
		h.append(p[:s.rng.IntN(len(p)+1)])
		s.die("write " + h.name)
	case s.isFull(len(p)):
		s.injected["write: ENOSPC"]++
		return h.short(p, syscall.ENOSPC)
	}
	if err := s.enter(faultWrite, h.name); err != nil {
		return h.short(p, syscall.EIO)
	}
	h.append(p)
	h.file.skipsSync = h.file.skipsSync || s.bugs.unsynced > 0 && hasRecord(p, s.bugs.unsynced)
	return len(p), nil
}

// hasRecord reports whether the bytes of a write have a record of a kind. A header has a lease.
func hasRecord(p []byte, k kind) bool {
	if bytes.HasPrefix(p, []byte(segmentMagic)) {
		p = p[fileHeadBytes:]
	}
	for len(p) >= recordHeadBytes {
		if has := kind(p[16]); has == k || has == kindHeader && k == kindLease {
			return true
		}
		p = p[min(len(p), recordHeadBytes+int(binary.LittleEndian.Uint32(p[4:]))):]
	}
	return false
}

// short writes a part, and fails.
func (h *simHandle) short(p []byte, why error) (int, error) {
	n := 0
	if len(p) > 0 && h.fs.rng.IntN(2) == 0 {
		n = h.fs.rng.IntN(len(p))
		h.append(p[:n])
	}
	h.fs.say("    write %s takes %d of %d bytes: %v", h.name, n, len(p), why)
	return n, &fs.PathError{Op: "write", Path: h.name, Err: why}
}

func (h *simHandle) append(p []byte) {
	if len(p) == 0 {
		return
	}
	c := change{len(h.file.cache), bytes.Clone(p)}
	h.file.cache = c.apply(h.file.cache)
	h.file.dirty = append(h.file.dirty, c)
}

// Sync makes the content durable: what was written before the call, and perhaps what is
// written meanwhile. A sync that fails drops what it should have written. Then processes
// still see it, as on ext4, or do not, as on btrfs.
func (h *simHandle) Sync() error {
	s, f := h.fs, h.file
	switch {
	case s.down != nil:
		return s.down
	case h.closed:
		return fs.ErrClosed
	}
	n := len(f.dirty)
	s.meanwhile()
	if s.down != nil {
		return s.down
	}
	if err := s.enter(faultSync, h.name); err != nil {
		f.disk = s.outcome(f, s.rng.IntN(outcomes))
		f.dirty = nil
		if s.rng.IntN(4) == 0 {
			s.injected["sync: content reverted"]++
			s.reverted = true
			f.cache = bytes.Clone(f.disk)
		}
		return err
	}
	if f.skipsSync {
		f.skipsSync = false
		return nil
	}
	n = min(n, len(f.dirty)) // less if another call has synced the file meanwhile
	n += s.rng.IntN(len(f.dirty) - n + 1)
	f.disk = applyAll(f.disk, f.dirty[:n])
	f.dirty = slices.Clone(f.dirty[n:])
	return nil
}

// Truncate cuts the file.
func (h *simHandle) Truncate(size int64) error {
	s := h.fs
	switch {
	case s.down != nil:
		return s.down
	case h.closed:
		return fs.ErrClosed
	case size < 0 || size > int64(len(h.file.cache)):
		return fmt.Errorf("truncate %s at %d: it has %d bytes", h.name, size, len(h.file.cache))
	}
	if err := s.enter(faultTruncate, h.name); err != nil {
		return err
	}
	c := change{at: int(size)}
	h.file.cache = c.apply(h.file.cache)
	h.file.dirty = append(h.file.dirty, c)
	return nil
}

// Close closes the file. It syncs nothing.
func (h *simHandle) Close() error {
	h.closed = true
	return h.fs.down
}

// A simReader is a file that is open for reading.
type simReader struct {
	*simHandle
	at int
}

func (r *simReader) Read(p []byte) (int, error) {
	if err := r.fs.enter(faultRead, r.name); err != nil {
		return 0, err
	}
	if r.at >= len(r.file.cache) {
		return 0, io.EOF
	}
	n := copy(p, r.file.cache[r.at:])
	r.at += n
	return n, nil
}

// Size returns the size of the file.
func (r *simReader) Size() (int64, error) { return int64(len(r.file.cache)), r.fs.down }

// Lock keeps other processes out.
func (s *simFS) Lock() (io.Closer, error) {
	if s.locked {
		return nil, durable.ErrLocked
	}
	s.locked = true
	return unlock{s}, s.down
}

type unlock struct{ fs *simFS }

func (u unlock) Close() error { u.fs.locked = false; return nil }

// failures returns the number of calls that failed.
func (s *simFS) failures() (n int) {
	for kind, times := range s.injected {
		if strings.HasSuffix(kind, "EIO") || strings.HasSuffix(kind, "ENOSPC") {
			n += times
		}
	}
	return n
}

// listing returns the files and their sizes.
func (s *simFS) listing() string {
	var all []string
	for _, name := range sortedKeys(s.names) {
		all = append(all, fmt.Sprintf("%s %d", strings.TrimLeft(name, "0"), len(s.names[name].cache)))
	}
	return strings.Join(all, ", ")
}

// The simulated disk keeps what was synced, and only that is sure.
func TestTheSimulatedDiskKeepsWhatWasSynced(t *testing.T) {
	lost := make(map[string]int)
	for seed := range uint64(500) {
		s := newSimFS(rand.New(rand.NewPCG(seed, 1)))
		f, err := s.Create("a")
		require.NoError(t, err)
		text := make([]byte, 3000)
		for i := range text {
			text[i] = byte(1 + i%255)
		}
		write := func(from, to int) {
			n, err := f.Write(text[from:to])
			require.NoError(t, err)
			require.Equal(t, to-from, n)
		}
		write(0, 700)
		require.NoError(t, f.Sync())
		write(700, 1500)
		write(1500, 3000)
		isNamed := s.rng.IntN(2) == 0
		if isNamed {
			require.NoError(t, s.SyncDir())
		}
		s.losePower()
		_, err = f.Write(text)
		require.ErrorIs(t, err, errDown)
		s.boot()
		left := s.names["a"]
		switch {
		case left == nil:
			require.False(t, isNamed)
			lost["name"]++
			continue
		case len(left.cache) < 3000:
			lost["length"]++
		case string(left.cache) != string(text):
			lost["content"]++
		default:
			lost["nothing"]++
		}
		require.Equal(t, text[:700], left.cache[:700])
	}
	require.Len(t, lost, 4, "each happens: %v", lost)
}

// After a sync that failed, the next one succeeds without what the first should have written.
func TestTheSimulatedDiskDropsWhatASyncCouldNotWrite(t *testing.T) {
	dropped := 0
	for seed := range uint64(100) {
		s := newSimFS(rand.New(rand.NewPCG(seed, 1)))
		f, err := s.Create("a")
		require.NoError(t, err)
		require.NoError(t, s.SyncDir())
		_, _ = f.Write([]byte("first "))
		s.arm(faultSync, 1)
		require.Error(t, f.Sync())
		_, _ = f.Write([]byte("second"))
		require.NoError(t, f.Sync())
		if s.reverted {
			continue
		}
		require.Equal(t, "first second", string(s.names["a"].cache))
		s.losePower()
		require.Len(t, s.names["a"].cache, 12)
		require.Equal(t, "second", string(s.names["a"].cache[6:]))
		if s.names["a"].cache[0] == 0 {
			dropped++
		}
	}
	require.Positive(t, dropped)
}

// guard calls a part of the daemon, and reports whether the process was killed meanwhile.
func (s *simFS) guard(do func()) (isKilled bool) {
	defer func() {
		if why := recover(); why != nil {
			if _, isKilled = why.(killed); !isKilled {
				panic(why)
			}
		}
	}()
	do()
	return false
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
