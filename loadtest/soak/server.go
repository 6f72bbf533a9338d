package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A server is a daemon that was started for the test, as a process of its own. It
// is called as package loadtest calls its child, ends with us in the same way, and
// can be killed besides.
//
//	--listen-public 127.0.0.1:0 --listen-admin 127.0.0.1:0 --addresses-file PATH
//	{"public":"127.0.0.1:41001","admin":"127.0.0.1:41002"}
type server struct {
	command *exec.Cmd
	public  string        // where it listens
	stderr  *tail         // what it said last
	gone    chan struct{} // closed when the process has ended
	ending  error         // how it ended; set before gone is closed
}

// Bounds of a server's life.
const (
	serverStarts = 20 * time.Second
	serverStops  = 25 * time.Second // above the daemon's drain window
	serverLook   = 5 * time.Millisecond
)

// startServer returns when the server is ready. Whoever gets one must stop or kill it;
// one that comes with an error is gone already.
func startServer(ctx context.Context, folder string, command []string) (*server, error) {
	file := filepath.Join(folder, "addresses.json")
	_ = os.Remove(file)
	s := &server{stderr: &tail{}, gone: make(chan struct{})}
	args := append(append([]string{}, command[1:]...),
		"--listen-public", "127.0.0.1:0", "--listen-admin", "127.0.0.1:0", "--addresses-file", file)
	s.command = exec.Command(command[0], args...)
	s.command.Stderr = s.stderr
	s.command.SysProcAttr = ownGroup() // Ctrl-C is ours to handle
	started := make(chan error)
	go s.live(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the server %q: %w", command[0], err)
	}
	if err := s.awaitReady(ctx, file); err != nil {
		s.kill()
		return s, fmt.Errorf("start the server %q: %w%s", command[0], err, s.stderr.quote())
	}
	return s, nil
}

// live starts the process and waits for its end. It keeps its thread: where the
// kernel stops a child with its parent, it takes the thread that started it for
// the parent.
func (s *server) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := s.command.Start()
	started <- err
	if err != nil {
		return
	}
	s.ending = s.command.Wait()
	close(s.gone)
}

func (s *server) awaitReady(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, serverStarts)
	defer cancel()
	look := time.NewTicker(serverLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("is not ready: %w", ctx.Err())
		case <-s.gone:
			return fmt.Errorf("ended before it was ready: %w", s.howEnded())
		case <-look.C:
			if ready, err := s.readAddresses(file); ready || err != nil {
				return err
			}
		}
	}
}

// readAddresses reports whether the whole line is there.
func (s *server) readAddresses(file string) (bool, error) {
	line, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && !bytes.HasSuffix(line, []byte("\n")) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var addresses struct{ Public string }
	if err := json.Unmarshal(line, &addresses); err != nil || addresses.Public == "" {
		return false, fmt.Errorf("addresses file %.200q names no public address", line)
	}
	s.public = addresses.Public
	return true, nil
}

// isGone reports whether the process has ended.
func (s *server) isGone() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// stop asks the process to end, and reports how it did.
func (s *server) stop() error {
	_ = askToStop(s.command.Process)
	select {
	case <-s.gone:
		return s.ending
	case <-time.After(serverStops):
	}
	s.kill()
	return fmt.Errorf("it did not end within %v", serverStops)
}

func (s *server) kill() {
	_ = s.command.Process.Kill()
	<-s.gone
}

// howEnded is for a server that is gone.
func (s *server) howEnded() error {
	if s.ending == nil {
		return errors.New("exit status 0")
	}
	return s.ending
}

// refusedFlags reports whether it refused its command line.
func (s *server) refusedFlags() bool {
	return s.isGone() && s.command.ProcessState.ExitCode() == 2
}

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
	text := strings.TrimSpace(string(t.kept))
	if text == "" {
		return "; it wrote nothing to its standard error"
	}
	all := strings.Split(text, "\n")
	return "; its last words:\n  " + strings.Join(all[max(len(all)-lines, 0):], "\n  ")
}
