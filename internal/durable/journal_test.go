package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const header = "names 1"

// A list is a journal of names, and those that count.
type list struct {
	*testing.T
	*Journal
	names   []string
	found   Opened
	changes int // by something else
}

// open opens a journal for the length of the test.
func open(t *testing.T, path string) (*list, error) {
	t.Helper()
	l := &list{T: t}
	var err error
	l.Journal, l.found, err = OpenJournal(JournalConfig{
		Path: path, Header: header,
		Read: func(record []byte) error {
			if string(record) == "nobody" {
				return errors.New("the line is no name")
			}
			l.names = append(l.names, string(record))
			return nil
		},
		Records: func() [][]byte {
			var records [][]byte
			for _, name := range l.names {
				records = append(records, []byte(name))
			}
			return records
		},
		Changed: func(int64, int64, error) { l.changes++ },
	})
	if err == nil {
		t.Cleanup(l.Close)
	}
	return l, err
}

func mustOpen(t *testing.T, path string) *list {
	t.Helper()
	l, err := open(t, path)
	require.NoError(t, err)
	return l
}

// add appends a name.
func (l *list) add(name string) error {
	err := l.Append([]byte(name), len(l.names))
	if err == nil {
		l.names = append(l.names, name)
	}
	return err
}

// reopen ends a process without a word, as kill -9 does, and starts the next.
func (l *list) reopen() *list {
	l.Helper()
	require.NoError(l, l.lock.Close())
	l.lock = nil
	return mustOpen(l.T, l.cfg.Path)
}

// A fakeFile counts syncs, and fails as the test says.
type fakeFile struct {
	*os.File
	syncs int
	fail  error // of the next writes, of which 20 bytes succeed
}

func (f *fakeFile) Write(b []byte) (int, error) {
	if f.fail != nil {
		n, _ := f.File.Write(b[:min(len(b), 20)])
		return n, f.fail
	}
	return f.File.Write(b)
}

func (f *fakeFile) Sync() error {
	f.syncs++
	return f.File.Sync()
}

func TestAJournalSyncsEachRecord(t *testing.T) {
	l := mustOpen(t, filepath.Join(t.TempDir(), "names"))
	f := &fakeFile{File: l.file.(*os.File)}
	l.file = f
	for i := range 5 {
		require.NoError(t, l.add(fmt.Sprint("name ", i)))
		require.Equal(t, i+1, f.syncs)
	}
	require.Equal(t, l.names, l.reopen().names)
}

// The disk is full for a while. The next record writes a whole file.
func TestAFailedWriteLosesNoRecord(t *testing.T) {
	l := mustOpen(t, filepath.Join(t.TempDir(), "names"))
	full := errors.New("no space left on device")
	for _, name := range []string{"ann", "cid"} {
		require.NoError(t, l.add(name))
		l.file = &fakeFile{File: l.file.(*os.File), fail: full}
		require.ErrorIs(t, l.add("bob, whose line is long"), full)
		if name == "ann" {
			l = l.reopen()
			require.NotZero(t, l.found.Torn)
		}
	}
	require.NoError(t, l.add("dan"))
	l = l.reopen()
	require.Equal(t, []string{"ann", "cid", "dan"}, l.names)

	l.file = &fakeFile{File: l.file.(*os.File), fail: full}
	require.ErrorIs(t, l.add("eve, whose line is long"), full)
	require.True(t, l.Check(), "the next check writes it, too")
	require.Equal(t, []string{"ann", "cid", "dan"}, l.reopen().names)
}

// A crash may cut the last line off at any byte. The line is dropped. Any other damage is refused.
func TestATornLastLineIsDropped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	l := mustOpen(t, path)
	require.NoError(t, l.add("ann"))
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, l.add("bob"))
	l.Close()
	both, err := os.ReadFile(path)
	require.NoError(t, err)
	for n := len(first); n < len(both); n++ {
		for _, tail := range []string{"", "\x00\x00\x00"} {
			require.NoError(t, os.WriteFile(path, append(both[:n:n], tail...), 0o600))
			l := mustOpen(t, path)
			require.EqualValues(t, n+len(tail)-len(first), l.found.Torn)
			require.NoError(t, l.add("cid"))
			require.Zero(t, l.changes, "nothing else has changed the file")
			l = l.reopen()
			require.Equal(t, []string{"ann", "cid"}, l.names)
			l.Close()
		}
	}
	for n := len(header) + 1; n < len(both)-1; n++ {
		damaged := append([]byte(nil), both...)
		damaged[n] ^= 1
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		l, err := open(t, path)
		if err == nil { // one line became two, or the reverse
			l.Close()
			t.Fatalf("byte %d is damaged, and the file was read", n)
		}
		line := 2 + strings.Count(string(both[:n]), "\n") - 1
		require.ErrorContains(t, err, fmt.Sprintf("%s, line %d: the line is damaged", path, line))
		require.ErrorContains(t, err, "restore the file from a backup")
		kept, readErr := os.ReadFile(path)
		require.NoError(t, readErr)
		require.Equal(t, damaged, kept, "it is left for the operator")
	}
}

// A journal is written anew without what does not count any more, but not after Close.
func TestAJournalIsCompacted(t *testing.T) {
	l := mustOpen(t, filepath.Join(t.TempDir(), "names"))
	require.NoError(t, l.add("ann"))
	require.NoError(t, l.add("bob"))
	l.names = []string{"bob"}
	require.NoError(t, l.Compact())
	require.NoError(t, l.add("cid"))
	require.Zero(t, l.changes)
	l = l.reopen()
	require.Equal(t, []string{"bob", "cid"}, l.names)
	l.names = nil
	l.Close()
	require.NoError(t, l.Compact())
	require.Equal(t, []string{"bob", "cid"}, mustOpen(t, l.cfg.Path).names)
}

// What the owner of the journal refuses is an error, too.
func TestARecordThatIsRefusedIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	l := mustOpen(t, path)
	require.NoError(t, l.add("ann"))
	require.NoError(t, l.add("nobody"))
	l.Close()
	_, err := open(t, path)
	require.ErrorContains(t, err, path+", line 3: the line is no name: restore the file")
}

func TestAJournalIsWrittenAnewWhenMostLinesAreStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	l := mustOpen(t, path)
	for i := range 3 * maxStaleLines {
		l.names = nil // the next replaces them
		require.NoError(t, l.add(fmt.Sprint(i)))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Less(t, strings.Count(string(text), "\n"), 2*maxStaleLines)
	names := l.reopen().names
	require.Equal(t, fmt.Sprint(3*maxStaleLines-1), names[len(names)-1])
}

// Something else changes the file, or puts another into its place, and keeps its time.
func TestAJournalThatIsChangedIsWrittenAnew(t *testing.T) {
	for name, change := range map[string]func(path string, text []byte) error{
		"extended":  func(path string, text []byte) error { return os.WriteFile(path, append(text, text...), 0o600) },
		"shortened": func(path string, text []byte) error { return os.Truncate(path, int64(len(text)-1)) },
		"replaced": func(path string, text []byte) error {
			return errors.Join(os.WriteFile(path+".other", text, 0o600), os.Rename(path+".other", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "names")
			l := mustOpen(t, path)
			require.NoError(t, l.add("ann"))
			require.False(t, l.Check())
			require.Zero(t, l.changes)
			was, err := os.Stat(path)
			require.NoError(t, err)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, change(path, text))
			require.NoError(t, os.Chtimes(path, was.ModTime(), was.ModTime()))
			require.NoError(t, l.add("bob"))
			require.Equal(t, 1, l.changes)
			require.Equal(t, []string{"ann", "bob"}, l.reopen().names)
		})
	}
}
