package child

import (
	"bytes"
	"strings"
	"sync"
)

// A tail keeps the last lines written to it. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

const tailBytes = 64 << 10

// Write is part of io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

// alarm returns what was said that a daemon must never say, or "".
func (t *tail) alarm() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, word := range []string{"WARNING: DATA RACE", "panic:", "fatal error:", "BUG:"} {
		if i := bytes.Index(t.kept, []byte(word)); i >= 0 {
			return string(t.kept[i:min(len(t.kept), i+1500)])
		}
	}
	return ""
}

// quote returns the last lines as part of an error's text.
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	const lines = 10
	all := strings.Split(strings.TrimSpace(string(t.kept)), "\n")
	last := all[max(len(all)-lines, 0):]
	if len(last) == 1 && last[0] == "" {
		return "; it wrote nothing to its standard error"
	}
	return "; the end of its standard error:\n  " + strings.Join(last, "\n  ")
}
