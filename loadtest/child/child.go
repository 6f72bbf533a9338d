// Package child starts a server, or an agent, as a process of its own: in this
// process it would share the scheduler and the garbage collector with the
// instrument.
package child

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
	"time"
)

// A Child is a process that was started for a test, and ends with this one.
//
// The command is called with these further flags, must listen on ports of its
// own choice, and once it is ready write one line to the file: the addresses.
//
//	--listen-public 127.0.0.1:0 --listen-admin 127.0.0.1:0 --addresses-file PATH
//	{"public":"127.0.0.1:41001","admin":"127.0.0.1:41002"}
//
// An agent is started in the same way, with --listen 127.0.0.1:0 in place of the
// two, and writes its address as the public one.
//
// Everything may be called concurrently.
type Child struct {
	what      string // "server" or "agent"
	command   *exec.Cmd
	folder    string // holds the addresses file; removed once read
	said      *tail
	gone      chan struct{} // closed when the process has ended
	ending    error         // how it ended; set before gone is closed
	addresses Addresses
}

// Addresses are where a Child listens.
type Addresses struct {
	Public string `json:"public"`
	Admin  string `json:"admin"` // may be empty
	TCP    string `json:"tcp"`   // may be empty
}

// Bounds of a child's life.
const (
	starts = 20 * time.Second
	stops  = 25 * time.Second // above the daemon's drain window
	look   = 5 * time.Millisecond
)

// Server starts a server, with more in its environment, and returns when it is ready.
// Whoever gets a Child must stop or kill it. One that comes with an error is gone
// already.
func Server(ctx context.Context, command []string, environment ...string) (*Child, error) {
	return start(ctx, "server", command, environment, "--listen-public", "127.0.0.1:0", "--listen-admin", "127.0.0.1:0")
}

// Floor starts a floor, which is told where to listen as an agent is. All else is as
// with Server.
func Floor(ctx context.Context, command []string) (*Child, error) {
	return start(ctx, "floor", command, nil, "--listen", "127.0.0.1:0")
}

// Agent starts an agent, with more in its environment. All else is as with Server.
func Agent(ctx context.Context, command []string, environment ...string) (*Child, error) {
	return start(ctx, "agent", command, environment, "--listen", "127.0.0.1:0")
}

func start(ctx context.Context, what string, command, environment []string, flags ...string) (*Child, error) {
	folder, err := os.MkdirTemp("", "pubsubd-loadtest-")
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", what, err)
	}
	c := &Child{what: what, folder: folder, said: &tail{}, gone: make(chan struct{})}
	defer c.forgetFolder()
	if err := c.launch(command, environment, flags); err != nil {
		return nil, fmt.Errorf("start the %s %q: %w", what, command[0], err)
	}
	if err := c.awaitReady(ctx); err != nil {
		_ = c.Stop()
		return c, fmt.Errorf("start the %s %q: %w%s", what, command[0], err, c.LastWords())
	}
	return c, nil
}

func (c *Child) addressesFile() string { return filepath.Join(c.folder, "addresses.json") }

func (c *Child) forgetFolder() { _ = os.RemoveAll(c.folder) }

func (c *Child) launch(command, environment, flags []string) error {
	args := slices.Concat(command[1:], flags, []string{"--addresses-file", c.addressesFile()})
	c.command = exec.Command(command[0], args...)
	c.command.Env = append(os.Environ(), environment...)
	c.command.Stderr = c.said
	c.command.SysProcAttr = ownGroup() // Ctrl-C is ours to handle; the child is stopped after the test
	started := make(chan error)
	go c.live(started)
	return <-started
}

// live starts the process and waits for its end. It keeps its thread: where the
// kernel stops a child with its parent, it takes the thread that started it for
// the parent.
func (c *Child) live(started chan<- error) {
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

func (c *Child) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, starts)
	defer cancel()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("is not ready: %w", ctx.Err())
		case <-c.gone:
			return fmt.Errorf("ended before it was ready: %s", c.howEnded())
		case <-ticker.C:
			if ready, err := c.readAddresses(); ready || err != nil {
				return err
			}
		}
	}
}

// readAddresses reports whether the whole line is there.
func (c *Child) readAddresses() (bool, error) {
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

// Addresses are where it listens.
func (c *Child) Addresses() Addresses { return c.addresses }

// PID is its process.
func (c *Child) PID() int { return c.command.Process.Pid }

// Gone is closed when the process has ended.
func (c *Child) Gone() <-chan struct{} { return c.gone }

// IsGone reports whether the process has ended.
func (c *Child) IsGone() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// Ended returns an error if the process is gone.
func (c *Child) Ended() error {
	if !c.IsGone() {
		return nil
	}
	return fmt.Errorf("the %s ended during the test: %s%s", c.what, c.howEnded(), c.LastWords())
}

// ExitCode is that of a process that is gone, else -1.
func (c *Child) ExitCode() int {
	if !c.IsGone() {
		return -1
	}
	return c.command.ProcessState.ExitCode()
}

// Stop asks the process to end, and ends it if it does not. The error is how it
// ended, if not well.
func (c *Child) Stop() error {
	_ = askToStop(c.command.Process)
	select {
	case <-c.gone:
		return c.ending
	case <-time.After(stops):
	}
	c.Kill()
	return fmt.Errorf("it did not end within %v", stops)
}

// Kill ends the process at once.
func (c *Child) Kill() {
	_ = c.command.Process.Kill()
	<-c.gone
}

// LastWords are the last lines that it wrote to its standard error, as part of an
// error's text.
func (c *Child) LastWords() string { return c.said.quote() }

// Alarm is what it wrote there that a daemon must never say, or "".
func (c *Child) Alarm() string { return c.said.alarm() }

// howEnded is for a child that is gone.
func (c *Child) howEnded() string {
	if c.ending == nil {
		return "exit status 0"
	}
	return c.ending.Error()
}
