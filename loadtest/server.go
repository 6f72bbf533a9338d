package loadtest

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
	"slices"
	"strings"
	"sync"
	"time"
)

// A child is a server that was started for the test, as a process of its own: a
// server in this process would share its scheduler and its garbage collector
// with the instrument.
//
// The command is called with these further flags, must listen on ports of its
// own choice, and once it is ready write one line to the file: the addresses.
//
//	--listen-public 127.0.0.1:0 --listen-admin 127.0.0.1:0 --addresses-file PATH
//	{"public":"127.0.0.1:41001","admin":"127.0.0.1:41002"}
//
// An agent is started in the same way, with --listen 127.0.0.1:0 in place of the
// two, and writes its address as the public one.
type child struct {
	what      string // "server" or "agent"
	command   *exec.Cmd
	folder    string        // holds the addresses file; removed once read
	stderr    *tail         // what it said last
	gone      chan struct{} // closed when the process has ended
	ending    error         // how it ended; set before gone is closed
	addresses addresses
}

type addresses struct {
	Public string `json:"public"`
	Admin  string `json:"admin"`
}

// Bounds of a child's life.
const (
	childStarts = 15 * time.Second
	childStops  = 15 * time.Second // above the daemon's drain window
	childLook   = 10 * time.Millisecond
)

// startChild returns when the server is ready. Whoever gets a child must stop it.
func startChild(ctx context.Context, command []string) (*child, error) {
	return startProcess(ctx, "server", command, nil, "--listen-public", "127.0.0.1:0", "--listen-admin", "127.0.0.1:0")
}

// startProcess starts a child with more in its environment and further flags.
func startProcess(ctx context.Context, what string, command, environment []string, flags ...string) (*child, error) {
	folder, err := os.MkdirTemp("", "pubsubd-loadtest-")
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", what, err)
	}
	c := &child{what: what, folder: folder, stderr: &tail{}, gone: make(chan struct{})}
	defer c.forgetFolder()
	if err := c.launch(command, environment, flags); err != nil {
		return nil, fmt.Errorf("start the %s %q: %w", what, command[0], err)
	}
	if err := c.awaitReady(ctx); err != nil {
		c.stop()
		return nil, fmt.Errorf("start the %s %q: %w%s", what, command[0], err, c.stderr.quote())
	}
	return c, nil
}

func (c *child) addressesFile() string { return filepath.Join(c.folder, "addresses.json") }

func (c *child) forgetFolder() { _ = os.RemoveAll(c.folder) }

func (c *child) launch(command, environment, flags []string) error {
	args := slices.Concat(command[1:], flags, []string{"--addresses-file", c.addressesFile()})
	c.command = exec.Command(command[0], args...)
	c.command.Env = append(os.Environ(), environment...)
	c.command.Stderr = c.stderr
	c.command.SysProcAttr = ownGroup() // Ctrl-C is ours to handle; the child is stopped after the test
	started := make(chan error)
	go c.live(started)
	return <-started
}

// live starts the process and waits for its end. It keeps its thread: where the
// kernel stops a child with its parent, it takes the thread that started it for
// the parent.
func (c *child) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.command.Start()
	started <- err
	if err != nil {
		return
	}
	c.ending = c.command.Wait()
	close(c.gone)
}

func (c *child) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, childStarts)
	defer cancel()
	look := time.NewTicker(childLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("is not ready: %w", ctx.Err())
		case <-c.gone:
			return fmt.Errorf("ended before it was ready: %s", c.howEnded())
		case <-look.C:
			if ready, err := c.readAddresses(); ready || err != nil {
				return err
			}
		}
	}
}

// readAddresses reports whether the whole line is there.
func (c *child) readAddresses() (bool, error) {
	line, err := os.ReadFile(c.addressesFile())
	if errors.Is(err, os.ErrNotExist) || err == nil && !bytes.HasSuffix(line, []byte("\n")) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(line, &c.addresses); err != nil {
		return false, fmt.Errorf("addresses file %.200q: %w", line, err)
	}
	if c.addresses.Public == "" {
		return false, fmt.Errorf("addresses file %.200q names no public address", line)
	}
	return true, nil
}

// ended returns an error if the process is gone.
func (c *child) ended() error {
	select {
	case <-c.gone:
		return fmt.Errorf("the %s ended during the test: %s%s", c.what, c.howEnded(), c.stderr.quote())
	default:
		return nil
	}
}

// stop asks the process to end, and ends it if it does not.
func (c *child) stop() {
	_ = askToStop(c.command.Process)
	select {
	case <-c.gone:
		return
	case <-time.After(childStops):
	}
	_ = c.command.Process.Kill()
	<-c.gone
}

// howEnded is for a child that is gone.
func (c *child) howEnded() string {
	if c.ending == nil {
		return "exit status 0"
	}
	return c.ending.Error()
}

// A tail keeps the last lines written to it. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

const tailBytes = 4 << 10

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
	return "; its last words:\n  " + strings.Join(last, "\n  ")
}
