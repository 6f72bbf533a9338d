package durable

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
)

// A Journal is a file of records: what Append has acknowledged outlasts a crash. One goroutine at
// a time may use it. Its owner closes it.
//
// The file has a header, and a line for each record: the CRC-32C of the record in eight
// hexadecimal digits, a space, and the record.
type Journal struct {
	cfg     JournalConfig
	lock    *os.File    // another process cannot open the file; nil: closed
	file    appender    // nil: the next Append or Check writes the file anew
	written fs.FileInfo // of file, when it was opened or written last
	lines   int         // in the file, without the header
	bytes   int64       // in the file
}

// JournalConfig says what a journal is of. Every field is required.
type JournalConfig struct {
	Path   string
	Header string // the first line of the file, without its end

	// Read gets each record that the file has, the oldest first. It must not keep it.
	Read func(record []byte) error

	// Records returns the records that count. The file is written anew with them.
	Records func() [][]byte

	// Changed is called when something else has changed, replaced or removed the file, which had
	// and has so many bytes. The journal has written it anew, but for err.
	Changed func(had, has int64, err error)
}

// Opened is what OpenJournal found.
type Opened struct {
	New   bool  // there was no file
	Lost  bool  // and yet a process has used it
	Empty bool  // the file had no header
	Torn  int64 // bytes of the last line, which a crash had cut off, and which were dropped
}

// An appender is what a Journal needs of an *os.File.
type appender interface {
	file
	Stat() (fs.FileInfo, error)
}

const (
	// maxStaleLines is how many lines that do not count any more the file may have, besides as
	// many as count.
	maxStaleLines = 1000

	// maxLine bounds a line.
	maxLine = 64 << 10
)

// OpenJournal opens a journal, or makes it, and locks it until Close. An error says what is wrong
// with the file, and where. Damage before the last line is an error, and stays for the operator.
func OpenJournal(cfg JournalConfig) (j *Journal, found Opened, err error) {
	j = &Journal{cfg: cfg}
	defer func() {
		if err != nil {
			j.Close()
			j = nil
		}
	}()
	_, unlocked := os.Stat(j.cfg.Path + LockSuffix)
	j.lock, err = Lock(j.cfg.Path, false)
	if errors.Is(err, ErrLocked) {
		return j, found, fmt.Errorf("%s is in use by another daemon: wait until it has ended, or give each daemon its own file", j.cfg.Path)
	}
	if err != nil {
		return j, found, fmt.Errorf("%w: name a file in a folder that the daemon can write to", err)
	}
	f, err := os.OpenFile(j.cfg.Path, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		found.New, found.Lost = true, unlocked == nil
		return j, found, j.rewrite() // so that a file that cannot be written is known now
	}
	if err != nil {
		return j, found, fmt.Errorf("%w: let the daemon read and write it", err)
	}
	j.file = f
	if found.Torn, err = j.read(f); err != nil {
		return j, found, fmt.Errorf("%s, %w", j.cfg.Path, err)
	}
	if found.Torn > 0 {
		if err := errors.Join(f.Truncate(j.bytes), f.Sync()); err != nil {
			return j, found, err
		}
	}
	if found.Empty = j.bytes == 0; found.Empty {
		return j, found, j.rewrite()
	}
	j.written, err = f.Stat()
	return j, found, err
}

// read reads all lines. It returns how many bytes follow that are no whole line: the end of a write
// that a crash cut off.
func (j *Journal) read(f io.Reader) (torn int64, err error) {
	in := bufio.NewReaderSize(f, maxLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && (n > 1 || len(line) == 0):
			return int64(len(line)), nil
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull):
			return 0, err
		case n == 1 && string(line) != j.cfg.Header+"\n":
			return 0, fmt.Errorf("line 1: the file does not begin with %q: name another one, which the daemon makes", j.cfg.Header)
		case n > 1:
			sum, record, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
			err := errors.New("the line is damaged: its checksum is wrong")
			if string(sum) == checksum(record) {
				err = j.cfg.Read(record)
			}
			if err != nil {
				return 0, fmt.Errorf("line %d: %w: restore the file from a backup, or remove the line and repeat what it says", n, err)
			}
			j.lines++
		}
		j.bytes += int64(len(line))
	}
}

func checksum(record []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(record, crc32.MakeTable(crc32.Castagnoli)))
}

// Append adds a record of at most 65,000 bytes, without a line break, and syncs the file. It writes
// the file anew if an earlier write has failed, or if most of its lines do not count any more:
// counting is how many do.
func (j *Journal) Append(record []byte, counting int) error {
	if j.lock != nil && j.file != nil {
		j.restore() // before the change cannot be told from this write
	}
	switch {
	case j.lock == nil:
		return fs.ErrClosed
	case j.file == nil || j.lines > 2*counting+maxStaleLines:
		return j.rewrite(record)
	}
	n, err := fmt.Fprintf(j.file, "%s %s\n", checksum(record), record)
	if err == nil {
		err = j.file.Sync()
	}
	if err == nil {
		j.written, err = j.file.Stat()
	}
	if err != nil {
		j.closeFile() // half of the line may be in the file
		return err
	}
	j.lines++
	j.bytes += int64(n)
	return nil
}

// Check writes the file anew if something else has changed it, because what Append has acknowledged
// must outlast the process. If that fails, as on a full disk, each later call tries again. It
// reports whether the file is on disk again after such a failure.
func (j *Journal) Check() (again bool) {
	switch {
	case j.lock == nil:
		return false
	case j.file == nil:
		return j.rewrite() == nil
	}
	j.restore()
	return false
}

// Compact writes the file anew, without the records that do not count any more.
func (j *Journal) Compact() error {
	if j.lock == nil {
		return nil // another process may have the file
	}
	return j.rewrite()
}

// restore writes the file anew, and says so, if something else has changed it.
func (j *Journal) restore() {
	is, err := os.Stat(j.cfg.Path)
	size := int64(0)
	if err == nil {
		size = is.Size()
	}
	if err == nil && size == j.bytes && is.ModTime().Equal(j.written.ModTime()) && os.SameFile(is, j.written) {
		return
	}
	had := j.bytes
	j.cfg.Changed(had, size, j.rewrite())
}

// rewrite writes the file with the records that count, and with those that are added, and opens it.
func (j *Journal) rewrite(added ...[]byte) error {
	j.closeFile()
	all := append(j.cfg.Records(), added...)
	size := 0
	err := Write(j.cfg.Path, func(w io.Writer) error {
		out := bufio.NewWriter(w)
		size, _ = fmt.Fprintln(out, j.cfg.Header) // Flush returns the error
		for _, record := range all {
			n, _ := fmt.Fprintf(out, "%s %s\n", checksum(record), record)
			size += n
		}
		return out.Flush()
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(j.cfg.Path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err // the next Append tries again
	}
	j.file, j.lines, j.bytes = f, len(all), int64(size)
	if j.written, err = f.Stat(); err != nil {
		j.closeFile()
	}
	return err
}

func (j *Journal) closeFile() {
	if j.file != nil {
		_ = j.file.Close() // each line was synced
		j.file = nil
	}
}

// Close closes the file, for another process. It may be called again. After it, Append fails.
func (j *Journal) Close() {
	j.closeFile()
	if j.lock != nil {
		j.lock.Close() // nothing was written
		j.lock = nil
	}
}
