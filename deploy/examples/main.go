// Command examples serves the pages of deploy/examples at one address, with the back ends
// that they need. It starts the daemon, if its command follows, and allows exactly the
// pages' origin there, besides those that the command names with --cors-origins.
//
// The chat needs a daemon with settings of its own, so it is there only with -page=chat.html.
//
//	examples [flags] [command of the daemon]
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
)

func main() {
	address := flag.String("listen", "127.0.0.1:8083", "where to serve pages: an address of this machine and a port")
	folder := flag.String("folder", "deploy/examples", "the folder of the pages")
	server := flag.String("server", "http://127.0.0.1:8080", "the daemon's address")
	page := flag.String("page", "", "the page to point to at the start")
	life := flag.Duration("token-life", time.Minute, "how long a token of the chat is valid")
	flag.Parse()
	code, err := run(*address, *folder, *server, *page, *life, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "examples:", err)
	}
	os.Exit(code)
}

// run serves pages until the daemon ends, or until a signal comes if there is no daemon. It
// returns the exit code.
func run(address, folder, server, page string, life time.Duration, daemon []string) (int, error) {
	if _, err := os.Stat(folder); err != nil {
		return 1, fmt.Errorf("the folder of the pages: %w", err)
	}
	push, err := pubsub.New(server)
	if err != nil {
		return 1, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return 1, fmt.Errorf("serve pages: %w. End the other program, or name another address with -listen or make's PAGES_ADDRESS", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	origin := "http://" + listener.Addr().String()
	back := newBackend(push, folder)
	environment := append(os.Environ(), "PUBSUBD_CORS_ORIGINS="+origin)
	if page == "chat.html" {
		keys, err := os.MkdirTemp("", "chat-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(keys) //nolint:errcheck // nothing depends on it
		c, settings, err := newChat(origin, filepath.Join(keys, "key.json"), life)
		if err != nil {
			return 1, err
		}
		back.HandleFunc("POST /chat/token", c.login)
		back.HandleFunc("POST /chat/hook", c.moderate)
		// The other pages have no tokens.
		environment = append(environment, `PUBSUBD_AUTH_ANONYMOUS=[{"topics":["hello","prices.*","answer.*"],"allow":["subscribe","publish"]}]`)
		environment = append(environment, settings...)
	}
	pages := http.Server{Handler: onlyOrigin(origin, back), ReadHeaderTimeout: 10 * time.Second}
	go pages.Serve(listener) //nolint:errcheck // it ends with the process
	fmt.Printf("Open %s/%s in a browser.\n", origin, page)
	if len(daemon) == 0 {
		<-signals
		return 0, nil
	}
	return runDaemon(withOrigin(daemon, origin), environment, signals)
}

// withOrigin adds an origin to the last --cors-origins of a command, if it has one: a flag
// overrides the environment.
func withOrigin(command []string, origin string) []string {
	const flag = "--cors-origins"
	for i, arg := range slices.Backward(command) {
		value, has := strings.CutPrefix(arg, flag+"=")
		if arg == flag && i+1 < len(command) {
			value, has = command[i+1], true
		}
		switch {
		case !has:
			continue
		case value == "*" || slices.Contains(strings.Split(value, ","), origin):
			return command
		}
		return append(slices.Clone(command), flag+"="+strings.Trim(value+","+origin, ","))
	}
	return command
}

// onlyOrigin redirects requests for other names of this machine, such as localhost: to a
// browser they are other origins, which the daemon refuses. It refuses requests of pages of
// other origins that could change anything.
func onlyOrigin(origin string, next http.Handler) http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if "http://"+r.Host != origin {
			http.Redirect(w, r, origin+r.URL.RequestURI(), http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("Cache-Control", "no-cache")
		r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
		next.ServeHTTP(w, r)
	}))
}

// runDaemon runs the daemon to its end, passes signals on, and returns its exit code. It prints
// the command that kills the daemon. If somebody runs that, the daemon starts again, so that
// pages can show what they do then.
func runDaemon(command, environment []string, signals <-chan os.Signal) (int, error) {
	stopping := false
	for {
		daemon := exec.Command(command[0], command[1:]...)
		daemon.Env = environment
		daemon.Stdout, daemon.Stderr = os.Stdout, os.Stderr
		// Without a group of its own the daemon would get Ctrl-C twice, and not drain.
		daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := daemon.Start(); err != nil {
			return 1, err
		}
		fmt.Printf("To kill the daemon without warning: kill -9 %d\n", daemon.Process.Pid)
		ended := make(chan struct{})
		go func() {
			_ = daemon.Wait() // its error is the exit code
			close(ended)
		}()
		for running := true; running; {
			select {
			case s := <-signals:
				stopping = stopping || s != syscall.SIGHUP
				_ = daemon.Process.Signal(s) // it fails if the daemon has ended
			case <-ended:
				running = false
			}
		}
		killed := daemon.ProcessState.ExitCode() < 0
		if killed && stopping {
			return 1, nil
		}
		if !killed {
			return daemon.ProcessState.ExitCode(), nil
		}
		fmt.Println("The daemon was killed. It starts again.")
	}
}
