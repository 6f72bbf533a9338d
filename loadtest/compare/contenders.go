package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Pinned in peers.sh, too; a test holds them together.
const (
	centrifugoVersion = "v5.4.9"
	mercureVersion    = "v0.18.0"
)

// A contender is a server, in one of the ways in which it can be used.
type contender struct {
	name    string
	product string              // contenders of one product share a program
	speaks  map[manner][]string // the load generator's flags; a manner that is absent is not measured
	brief   bool                // is only there for perspective; see scenario.long
	command func(l *launch) error
}

func (c contender) takesPart(s scenario) bool {
	_, speaks := c.speaks[s.manner]
	return speaks && (!c.brief || !s.long)
}

// programs are the files that are run.
type programs struct {
	pubsubd  string
	baseline string // an older pubsubd; empty: none
	tools    string // folder of Centrifugo and Mercure
}

func (p programs) centrifugo() string {
	return filepath.Join(p.tools, "centrifugo-"+centrifugoVersion)
}

func (p programs) mercure() string { return filepath.Join(p.tools, "mercure-"+mercureVersion) }

// contenders returns all, the floor first: what others are divided by.
func contenders(p programs) []contender {
	dialect := func(name string, more ...string) []string { return append([]string{"--dialect", name}, more...) }
	pubsubd := map[manner][]string{
		byPoll:   dialect("pubsubd"),
		byStream: dialect("pubsubd", "--mode", "stream"),
		inCollab: dialect("pubsubd"),
	}
	// Those that are named for their transport take part with it alone.
	pushed := func(transport string, more ...string) []string {
		return append(dialect("pubsubd", "--transport", transport), more...)
	}
	stream := func(name string) map[manner][]string { return map[manner][]string{byStream: dialect(name)} }
	both := func(name string) map[manner][]string {
		return map[manner][]string{byStream: dialect(name), inCollab: dialect(name)}
	}
	all := []contender{
		{name: "floor", product: "floor", command: p.floor, speaks: map[manner][]string{
			byPoll: dialect("floor"), byStream: dialect("floor-stream"), inCollab: dialect("floor"),
		}},
		{name: "pubsubd", product: "pubsubd", speaks: pubsubd, command: p.serve(p.pubsubd)},
		{name: "pubsubd-channel", product: "pubsubd", speaks: pubsubd, command: p.serve(p.pubsubd, "--lane=channel")},
		{name: "pubsubd-nethttp", product: "pubsubd", speaks: pubsubd, brief: true, command: p.serve(p.pubsubd, "--lane=off")},
	}
	all = append(all,
		contender{name: judged + withLimits, product: "pubsubd", speaks: pubsubd, brief: true, command: p.serve(p.pubsubd, everyLimit...)},
		contender{name: "pubsubd-sse", product: "pubsubd", command: p.serve(p.pubsubd), speaks: map[manner][]string{byStream: pushed("sse")}},
		contender{name: "pubsubd-ws", product: "pubsubd", command: p.serve(p.pubsubd), speaks: map[manner][]string{
			byStream: pushed("websocket"), inCollab: pushed("websocket"),
		}},
		contender{name: "pubsubd-ws-cbor", product: "pubsubd", brief: true, command: p.serve(p.pubsubd), speaks: map[manner][]string{
			byStream: pushed("websocket", "--format", "cbor"), inCollab: pushed("websocket", "--format", "cbor"),
		}},
		contender{name: "pubsubd-ws-duplex", product: "pubsubd", brief: true, command: p.serve(p.pubsubd), speaks: map[manner][]string{
			inCollab: pushed("websocket", "--publish-on-socket"),
		}},
		contender{name: "pubsubd-cbor", product: "pubsubd", brief: true, command: p.serve(p.pubsubd), speaks: map[manner][]string{
			byStream: pushed("stream", "--format", "cbor"),
		}},
	)
	if p.baseline != "" {
		all = append(all, contender{name: "baseline", product: "baseline", speaks: pubsubd, brief: true, command: p.serve(p.baseline)})
	}
	return append(all,
		contender{name: "nchan", product: "nchan", command: p.nchan, speaks: map[manner][]string{
			byPoll: dialect("nchan-longpoll"), inCollab: dialect("nchan-longpoll"),
		}},
		contender{name: "nchan-sse", product: "nchan", command: p.nchan, speaks: stream("nchan-sse")},
		contender{name: "nchan-ws", product: "nchan", command: p.nchan, speaks: both("nchan-ws")},
		contender{name: "centrifugo-sse", product: "centrifugo", command: p.centrifugoServer, speaks: both("centrifugo-sse")},
		contender{name: "centrifugo-stream", product: "centrifugo", command: p.centrifugoServer, speaks: stream("centrifugo-stream")},
		contender{name: "centrifugo-ws", product: "centrifugo", command: p.centrifugoServer, speaks: both("centrifugo-ws")},
		contender{name: "mercure", product: "mercure", command: p.mercureHub, speaks: both("mercure")},
	)
}

// everyLimit has the daemon count all that it can count, and refuse nothing.
var everyLimit = func() []string {
	const most = "1000000"
	flags := []string{
		"--trusted-proxies=192.0.2.0/24", // documentation's, which nobody has
		"--limits-calls=" + most, "--limits-waiting-calls=" + most, "--limits-pending-sessions=" + most,
		"--limits-address-connections=" + most, "--limits-address-calls=" + most,
	}
	for _, kind := range []string{"publishes", "sessions", "polls", "requests", "topics", "connections", "misses"} {
		flags = append(flags, "--rates-"+kind+"-all="+most+"/s", "--rates-"+kind+"-address="+most+"/s")
	}
	return flags
}()

func (p programs) floor(l *launch) error {
	port, err := freePort()
	l.listensOn(port)
	l.run(p.pubsubd, "floor", "--listen", l.address)
	return err
}

func (p programs) serve(binary string, flags ...string) func(*launch) error {
	return func(l *launch) error {
		l.addressesFile = filepath.Join(l.folder, "addresses.json")
		l.run(binary, append([]string{"serve", "--log-level=warn", "--listen-public", "127.0.0.1:0",
			"--listen-admin", "127.0.0.1:0", "--addresses-file", l.addressesFile}, flags...)...)
		return nil
	}
}

// The places where distributions put the dynamic module.
var nchanModules = []string{"/usr/lib/nginx/modules/ngx_nchan_module.so", "/usr/lib64/nginx/modules/ngx_nchan_module.so"}

// nginx is where only root looks for programs, on some systems.
func nginx() string {
	if path, err := exec.LookPath("nginx"); err == nil {
		return path
	}
	return "/usr/sbin/nginx"
}

// nchanModule returns "" if there is none: then nginx must have it built in.
func nchanModule() string {
	for _, path := range nchanModules {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// spareFiles are what nginx opens besides connections.
const spareFiles = 100

func (p programs) nchan(l *launch) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	l.listensOn(port)
	l.run(nginx(), "-p", l.folder, "-c", "nchan.conf", "-e", "error.log")
	l.stderr = "error.log"
	return l.file("nchan.conf", nchanSettings{nchanModule(), port, openFiles - spareFiles})
}

func (p programs) centrifugoServer(l *launch) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	key := rand.Text()
	l.listensOn(port)
	l.generator = []string{"--api-key", key}
	l.run(p.centrifugo(), "--config", filepath.Join(l.folder, "centrifugo.json"))
	return l.file("centrifugo.json", centrifugoSettings{port, key})
}

// mercureHub keeps updates in memory, as the others do. Its time limits for
// connections are off, since a measurement must not end them.
func (p programs) mercureHub(l *launch) error {
	port, err := freePort()
	key := rand.Text() + rand.Text() // at least 256 bits, which HS256 wants
	l.listensOn(port)
	l.generator = []string{"--token", mercureToken(key)}
	l.run(p.mercure(), "--addr", l.address, "--jwt-key", key, "--allow-anonymous",
		"--transport-url", "local://local", "--read-timeout", "0s", "--write-timeout", "0s")
	return err
}

// settings are written to a file of the server's folder.
type settings interface{ write(w io.Writer) error }

func (l *launch) file(name string, s settings) error {
	var text bytes.Buffer
	if err := s.write(&text); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.folder, name), text.Bytes(), 0o600)
}

// version returns what the contender's program calls itself, or an error if it is
// not installed.
func (p programs) version(product string) (string, error) {
	switch product {
	case "nchan":
		return nchanVersion()
	case "centrifugo":
		return firstLine(p.centrifugo(), "version")
	case "mercure":
		_, err := os.Stat(p.mercure())
		return "Mercure " + mercureVersion, unlessInstalled(err) // it does not know its own
	case "baseline":
		return firstLine(p.baseline, "version")
	default:
		return firstLine(p.pubsubd, "version")
	}
}

func nchanVersion() (string, error) {
	said, err := firstLine(nginx(), "-v")
	if err != nil {
		return "", err
	}
	if nchanModule() == "" {
		return "", errors.New("nginx is installed, its Nchan module is not")
	}
	nchan, err := firstLine("dpkg-query", "-W", "-f", "${Version}", "libnginx-mod-nchan")
	if err != nil {
		nchan = "of unknown version" // not Debian
	}
	return strings.TrimPrefix(said, "nginx version: ") + ", Nchan " + nchan, nil
}

func firstLine(program string, args ...string) (string, error) {
	said, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return "", unlessInstalled(err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
	return line, nil
}

// unlessInstalled tells a program that is not there without saying where: the
// results name no paths.
func unlessInstalled(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return errors.New("not installed")
	}
	return err
}

func (l *launch) listensOn(port int) { l.address = "127.0.0.1:" + strconv.Itoa(port) }

func (l *launch) run(program string, args ...string) { l.program, l.args = program, args }

// target returns the flags that tell the load generator where the server is.
func (l *launch) target() []string {
	flags := []string{"--target", "http://" + l.address, "--server-pid", strconv.Itoa(l.command.Process.Pid)}
	if l.admin != "" {
		flags = append(flags, "--admin", fmt.Sprintf("http://%s", l.admin))
	}
	return append(flags, l.generator...)
}
