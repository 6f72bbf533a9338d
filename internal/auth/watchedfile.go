package auth

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

// A watchedFile is a file that is read again when it changes. Only one goroutine may use it
// at a time.
type watchedFile struct {
	path string
	most int64 // bytes that it may have

	known    bool      // it was read
	settled  bool      // it had not changed for a while when it was read
	size     int64     // when it was read
	modified time.Time // when it was read
	sum      [sha256.Size]byte
	failed   string // the error of the last attempt; empty: none
}

// settledAfter is how old a change must be for its time to identify it: file systems keep
// times in coarse steps, and two writes may fall into one.
const settledAfter = 2 * time.Second

// read returns the contents if they have changed since the last call. Otherwise text is nil.
// A file that has not changed costs one stat. The error of a file that cannot be read is
// returned once for each cause.
func (f *watchedFile) read(now time.Time) (text []byte, err error) {
	text, err = f.changes(now)
	cause := ""
	if err != nil {
		cause = err.Error()
	}
	if cause == f.failed {
		err = nil
	}
	f.failed = cause
	return text, err
}

func (f *watchedFile) changes(now time.Time) ([]byte, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	if f.known && f.settled && info.Size() == f.size && info.ModTime().Equal(f.modified) {
		return nil, nil
	}
	text, err := readBounded(f.path, f.most)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	same := f.known && sum == f.sum
	f.known, f.settled = true, now.Sub(info.ModTime()) > settledAfter
	f.size, f.modified, f.sum = info.Size(), info.ModTime(), sum
	if same {
		return nil, nil
	}
	return text, nil
}

// readBounded reads a file that may have most bytes, without the byte order mark with which
// certain editors begin a file. The result is not nil.
func readBounded(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(text)) > most:
		return nil, fmt.Errorf("%s has more than %d bytes, which is the most that it may have", path, most)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), nil
}
