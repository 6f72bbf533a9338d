package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// openFiles is each process' limit: enough for the clients of any scenario.
const openFiles = 20000

// A launch is a server of one measurement: first what to start, which its
// contender fills in, then what runs. Whoever starts one must stop it.
type launch struct {
	folder        string // its own; removed with it
	program       string
	args          []string
	address       string   // where clients connect; read from addressesFile if that is named
	addressesFile string   // written by the server once it is ready
	stderr        string   // file in folder that holds what it says
	generator     []string // flags that the load generator needs to be let in
	admin         string   // address of the admin listener; empty: none

	command *exec.Cmd
	gone    chan struct{} // closed when the process has ended
}

// Bounds of a server's life.
const (
	startsWithin = 15 * time.Second
	stopsWithin  = 5 * time.Second
	look         = 20 * time.Millisecond
	rests        = 300 * time.Millisecond // from listening to having started up
)

// start returns when the contender's server is ready for clients.
func start(ctx context.Context, c contender) (*launch, error) {
	folder, err := os.MkdirTemp("", "pubsubd-compare-")
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	l := &launch{folder: folder, stderr: "stderr", gone: make(chan struct{})}
	if err := l.start(ctx, c); err != nil {
		err = fmt.Errorf("start %s: %w%s", c.name, err, l.lastWords())
		l.stop()
		return nil, err
	}
	return l, nil
}

func (l *launch) start(ctx context.Context, c contender) error {
	// nginx' worker is another user, who must be let through to its files.
	if err := os.Chmod(l.folder, 0o755); err != nil {
		return err
	}
	if err := c.command(l); err != nil {
		return err
	}
	if err := l.exec(); err != nil {
		return err
	}
	return l.awaitReady(ctx)
}

// exec runs the process with its standard error in a file, which costs nobody
// time while it is measured.
func (l *launch) exec() error {
	said, err := os.Create(filepath.Join(l.folder, "stderr"))
	if err != nil {
		return err
	}
	defer said.Close()
	path, err := exec.LookPath(l.program)
	if err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	l.command = exec.Command(path, l.args...)
	l.command.Dir, l.command.Env = l.folder, plainEnvironment()
	l.command.Stderr, l.command.Stdout = said, said
	l.command.SysProcAttr = ownGroup()
	if err := l.command.Start(); err != nil {
		l.command = nil
		return err
	}
	go l.await()
	return nil
}

func (l *launch) await() {
	_ = l.command.Wait() // how it ended does not matter; that it did does
	close(l.gone)
}

// plainEnvironment keeps settings in the environment from tuning a server or the
// Go runtime.
func plainEnvironment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
}

func (l *launch) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	for !l.ready() {
		if err := l.rest(ctx, look); err != nil {
			return err
		}
	}
	return l.rest(ctx, rests)
}

func (l *launch) rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("is not ready: %w", ctx.Err())
	case <-l.gone:
		return errors.New("ended before it was ready")
	case <-time.After(d):
		return nil
	}
}

func (l *launch) ready() bool {
	if l.addressesFile != "" && !l.readAddresses() {
		return false
	}
	conn, err := net.DialTimeout("tcp", l.address, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func (l *launch) readAddresses() bool {
	var a struct{ Public, Admin string }
	line, err := os.ReadFile(l.addressesFile)
	if err != nil || !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &a) != nil {
		return false
	}
	l.address, l.admin = a.Public, a.Admin
	return l.address != ""
}

// stop ends the server, and removes its folder.
func (l *launch) stop() {
	if l.command != nil {
		askToStop(l.command.Process)
		select {
		case <-l.gone:
		case <-time.After(stopsWithin):
		}
		killGroup(l.command.Process)
		<-l.gone
	}
	_ = os.RemoveAll(l.folder)
}

// lastWords returns the end of what the server said, as part of an error's text.
// It may say where its files are, which the results must not.
func (l *launch) lastWords() string {
	text, _ := os.ReadFile(filepath.Join(l.folder, l.stderr))
	if len(text) == 0 {
		text, _ = os.ReadFile(filepath.Join(l.folder, "stderr"))
	}
	if words := lastLine(string(text)); words != "" {
		return ": " + strings.ReplaceAll(words, l.folder, "…")
	}
	return ""
}

func lastLine(text string) string {
	const most = 300
	text = strings.TrimSpace(text)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	return text[:min(len(text), most)]
}

// freePort returns a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
