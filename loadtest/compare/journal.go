package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A journal keeps finished measurements in a file, a line each, so that a
// comparison which was interrupted can go on. Close it when done.
type journal struct {
	file *os.File
	kept []Measurement
}

// openJournal begins anew, or with what the file holds of the build if the
// comparison goes on. Measurements that failed are made again.
func openJournal(folder, build string, resume bool) (*journal, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	path := filepath.Join(folder, "measurements.jsonl")
	j := &journal{}
	if resume {
		if err := j.read(path, build); err != nil {
			return nil, fmt.Errorf("work file: %w", err)
		}
	}
	return j, j.rewrite(path)
}

func (j *journal) read(path, build string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // a last line without its end was not finished
		}
		if err != nil {
			return err
		}
		var m Measurement
		if err := json.Unmarshal(line, &m); err != nil {
			return err
		}
		if m.Build == build && !m.failed() {
			j.kept = append(j.kept, m)
		}
	}
}

func (j *journal) rewrite(path string) error {
	var err error
	if j.file, err = os.Create(path); err != nil {
		return fmt.Errorf("work file: %w", err)
	}
	for _, m := range j.kept {
		if err := j.write(m); err != nil {
			return err
		}
	}
	return nil
}

func (j *journal) write(m Measurement) error {
	line, err := json.Marshal(m)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("work file: %w", err)
	}
	return nil
}

func (j *journal) add(m Measurement) error {
	j.kept = append(j.kept, m)
	return j.write(m)
}

func (j *journal) has(m Measurement) bool {
	for _, k := range j.kept {
		if k.same(m) {
			return true
		}
	}
	return false
}

func (j *journal) close() error { return j.file.Close() }
