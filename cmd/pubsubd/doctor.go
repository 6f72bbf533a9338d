package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func doctorCommand() *cobra.Command {
	d := doctor{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the machine, the settings and the proxies for common faults",
		Long: `Check for common faults before and after the start, and print a remedy for each.
doctor reads the same settings as serve. Run it as the daemon runs: with its user,
flags and environment, because each process has its own limits of files and memory.

  settings   settings that are allowed, but may be a mistake
  files      the limit of open files, against limits.connections
  listen.*   whether the address is free, or a pubsubd listens there
  memory     GOMEMLIMIT, against memory.budget and the memory limit of the cgroup
  clock      whether the kernel calls its clock synchronised

With --url, doctor checks the path to the daemon through all proxies, and nothing else
unless you also give settings.

  url        a pubsubd answers, and the proxies leave the path and the Host as they should be
  date       the clock of this machine, against the Date header of the daemon
  stream     no proxy buffers: the first frame and a heartbeat arrive at once
  websocket  the proxies forward the upgrade
  poll       the proxies do not time out: a poll lasts until the daemon ends it

With --origin, doctor checks that pages of this origin may use the daemon: with --url
as a browser does (CORS), otherwise by the setting cors.origins.

The exit code is 1 if a check failed. Warnings do not change it.`,
		Example: `  pubsubd doctor --config /etc/pubsubd/pubsubd.yaml
  pubsubd doctor --url https://push.example.com --origin https://app.example.com
  docker exec CONTAINER /pubsubd doctor`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.SortFlags = false // the help begins with the flags of doctor, which are bound first
	d.server = &address{env: serverEnv, authority: bindAuthority(f), bearer: bindBearer(f)}
	f.StringVar(&d.server.text, "url", "", "base `URL` that clients use; without it $"+serverEnv+" counts; without both, no proxy is checked")
	d.server.flag = f.Lookup("url")
	f.StringVar(&d.origin, "origin", "", "check that pages of this `ORIGIN` may use the daemon, such as https://app.example.com")
	f.StringVar(&d.topic, "topic", "doctor", "`TOPIC` to subscribe to; with a token, one that the token allows")
	f.DurationVar(&d.timeout, "timeout", 40*time.Second, "how long the checks of --url may take; less than poll.timeout leaves the check of polls incomplete")
	f.DurationVar(&d.firstFrame, "first-frame", 5*time.Second, "how long the first frame of a stream or a WebSocket may take; clients give up after 5s")
	f.BoolVar(&d.json, "json", false, "print the results as JSON")
	loader := config.Bind(f)
	groupSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := loader.Load(os.Environ())
		if err != nil {
			return usageError{err}
		}
		ctx, stop := untilSignal(endings()...)
		defer stop()
		return d.run(ctx, loaded, cmd.OutOrStdout())
	}
	return cmd
}

// doctor is what the command line asks for.
type doctor struct {
	server     *address
	origin     string
	topic      string
	timeout    time.Duration // of all checks of the URL together
	firstFrame time.Duration
	json       bool
}

// A finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	Status status `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

type status string

const (
	isOK      status = "ok"
	isWarning status = "warning"
	isFailure status = "failure"
)

func ok(detail string, args ...any) finding {
	return finding{Status: isOK, Detail: fmt.Sprintf(detail, args...)}
}

func warning(remedy, detail string, args ...any) finding {
	return finding{Status: isWarning, Detail: fmt.Sprintf(detail, args...), Remedy: remedy}
}

func failure(remedy, detail string, args ...any) finding {
	return finding{Status: isFailure, Detail: fmt.Sprintf(detail, args...), Remedy: remedy}
}

// of names the check.
func (f finding) of(check string) finding { f.Check = check; return f }

func (d *doctor) run(ctx context.Context, cfg config.Loaded, out io.Writer) error {
	var findings []finding
	if onlyURL := d.server.flag.Changed && !cfg.Given(); !onlyURL {
		findings = checkMachine(ctx, cfg.Config)
	}
	switch text, _ := d.server.said(); {
	case text != "":
		through, err := d.checkURL(ctx)
		if err != nil {
			return err
		}
		findings = append(findings, through...)
	case d.origin != "":
		findings = append(findings, checkOrigins(cfg.Origins, d.origin).of("origin"))
	}
	if err := d.print(out, findings); err != nil {
		return err
	}
	if slices.ContainsFunc(findings, func(f finding) bool { return f.Status == isFailure }) {
		return exitWith(exitRunTime)
	}
	return nil
}

// checkMachine checks what a daemon with these settings needs of this machine.
func checkMachine(ctx context.Context, cfg config.Config) []finding {
	findings := []finding{checkSettings(cfg).of("settings"), checkFiles(cfg).of("files")}
	findings = append(findings, checkListeners(ctx, cfg)...)
	return append(findings,
		checkMemory(int64(cfg.Broker.MemoryBudget), memory.Limit(), cgroupMemory(os.DirFS("/"))).of("memory"),
		checkClock().of("clock"))
}

func (d *doctor) print(out io.Writer, findings []finding) error {
	if d.json {
		return json.NewEncoder(out).Encode(map[string][]finding{"checks": findings})
	}
	table := newTable(out)
	for _, f := range findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Status, f.Check, printable(f.Detail))
		if f.Remedy != "" {
			fmt.Fprintf(table, "\t\tremedy: %s\n", printable(f.Remedy))
		}
	}
	return table.Flush()
}

func checkSettings(cfg config.Config) finding {
	if warnings := cfg.Warnings(); len(warnings) > 0 {
		return warning("", "%s", strings.Join(warnings, "; "))
	}
	return ok("valid, and without warnings")
}

// fewConnections is more than a usual shell allows (1024 files), and less than most daemons need.
const fewConnections = 10_000

func checkFiles(cfg config.Config) finding {
	files, wanted := listen.OpenFilesLimit(), cfg.Limit.Connections
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || files == 0 {
		return ok("the limit of open files is not known, or there is none")
	}
	fit := files.Connections(0)
	const raise = "raise the limit of open files (ulimit -n, LimitNOFILE= in the unit, --ulimit nofile= of docker), or "
	text := fmt.Sprintf("%d open files (soft limit; hard limit %d) are enough for %d connections", files, limit.Max, fit)
	switch {
	case wanted > fit:
		return failure(raise+"lower limits.connections", "%s, but limits.connections is %d", text, wanted)
	case wanted == 0 && fit < fewConnections:
		return warning(raise+"set limits.connections to "+strconv.Itoa(fit)+" if that is enough", "%s", text)
	case wanted == 0:
		return ok("%s", text)
	}
	return ok("%s; limits.connections is %d", text, wanted)
}

func checkListeners(ctx context.Context, cfg config.Config) []finding {
	var secure *tls.Config
	if cfg.ServesTLS() {
		secure = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // doctor only asks what listens there, and sends no secret
		if cfg.ACME.On() {
			secure.ServerName = cfg.ACME.Domains[0]
		}
	}
	var findings []finding
	for _, l := range []listener{
		{"listen.public", cfg.Listen.Public, "/v1/doctor", `"code":"`, secure},
		{"listen.admin", cfg.Listen.Admin, "/livez", "ok", nil},
		{"listen.tcp", cfg.Listen.TCP, "", "", secure},
		{"listen.acme", cfg.Listen.ACME, "/", "challenges of ACME", nil},
	} {
		if l.address != "" {
			findings = append(findings, l.check(ctx).of(l.key))
		}
	}
	return findings
}

// A listener is one that serve would open.
type listener struct {
	key, address string
	path         string // that pubsubd answers with text of its own; empty: the listener speaks CBOR
	answer       string // part of that text
	tls          *tls.Config
}

func (l listener) check(ctx context.Context) finding {
	network, at := "tcp", reachable(l.address)
	if socket, isSocket := strings.CutPrefix(l.address, unixPrefix); isSocket {
		network, at = "unix", socket
	}
	bound, err := net.Listen(network, strings.TrimPrefix(l.address, unixPrefix))
	switch {
	case err == nil:
		bound.Close()
		return ok("%s is free", l.address)
	case errors.Is(err, fs.ErrPermission):
		return failure("choose another address, or give the daemon the right: ports below 1024 need CAP_NET_BIND_SERVICE, a socket needs a folder that the daemon's user may write", "%v", err)
	case !errors.Is(err, syscall.EADDRINUSE):
		return failure("set "+l.key+" to an address of this machine", "%v", err)
	case l.isPubsubd(ctx, network, at):
		return ok("a pubsubd listens on %s", l.address)
	case network == "unix" && !isAnswered(network, at):
		return ok("%s is a socket that nobody listens on: serve replaces it", at)
	}
	return failure("stop the other process (ss -ltnp shows it), or choose another address", "a process that is not pubsubd listens on %s", l.address)
}

// identify is how long a process on this machine may take to show that it is a pubsubd.
const identify = 10 * time.Second

// isPubsubd reports whether a pubsubd listens on the address.
func (l listener) isPubsubd(ctx context.Context, network, at string) bool {
	ctx, cancel := context.WithTimeout(ctx, identify)
	defer cancel()
	if l.path == "" {
		return speaksCBOR(ctx, at, l.tls)
	}
	t := &http.Transport{DisableKeepAlives: true, TLSClientConfig: l.tls}
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}
	u := url.URL{Scheme: "http", Host: "127.0.0.1", Path: l.path} // the daemon accepts this name always
	if l.tls != nil {
		u.Scheme = "https"
	}
	resp, err := (&http.Client{Transport: t}).Do((&http.Request{Method: http.MethodGet, URL: &u}).WithContext(ctx))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxReasonBytes))
	return strings.Contains(string(text), l.answer)
}

// speaksCBOR reports whether a pubsubd answers on its TCP port, be it with a refusal.
func speaksCBOR(ctx context.Context, at string, secure *tls.Config) bool {
	client, err := pubsub.New("http://"+at, pubsub.WithTCPAddr(at, secure))
	if err != nil {
		return false
	}
	defer client.Close()
	err = trySubscribe(ctx, client, "doctor", pubsub.WithTransport(pubsub.TCP), pubsub.WithOpenTimeout(identify))
	return err == nil || errors.As(err, new(*wire.Problem))
}

// trySubscribe opens a subscription and closes it. It ends at the first answer that is not
// pubsubd's, after which a client would go on trying.
func trySubscribe(ctx context.Context, client *pubsub.Client, topic string, options ...pubsub.SubscribeOption) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	notify := pubsub.WithRetryNotify(func(err error, _ time.Duration) {
		if errors.As(err, new(*pubsub.UnexpectedAnswerError)) {
			cancel(err)
		}
	})
	s, err := client.Subscribe(ctx, []wire.Start{pubsub.FromNow(topic)}, append(options, notify)...)
	if err == nil {
		s.Close()
	}
	return err
}

// isAnswered reports whether a process listens on the address.
func isAnswered(network, at string) bool {
	conn, err := net.Dial(network, at)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// checkMemory judges the collector's limit (GOMEMLIMIT; math.MaxInt64: not set) against the
// configured budget (0: auto) and the limit of the cgroup (0: none). The factors are those of
// deploy/README.md.
func checkMemory(configured, limit, cgroup int64) finding {
	if limit == math.MaxInt64 {
		return checkMemoryWithoutLimit(configured, cgroup)
	}
	budget := memory.Budget(int(configured), limit)
	have := fmt.Sprintf("GOMEMLIMIT is %s, memory.budget %s%s", mebibytes(limit), mebibytes(budget), cgroupText(cgroup))
	switch {
	case cgroup > 0 && limit > cgroup:
		return failure(toFourFifths(cgroup), "%s: the kernel kills the daemon before Go collects garbage", have)
	case cgroup > 0 && limit > cgroup/10*9:
		return warning(toFourFifths(cgroup), "%s: sockets need the rest", have)
	case budget > limit/4*3:
		return warning(fmt.Sprintf("set GOMEMLIMIT=%s or more, or lower memory.budget to %s", mebibytes(budget/8*11), mebibytes(limit/11*8)), "%s: the daemon shortens histories to stay below GOMEMLIMIT", have)
	}
	return ok("%s", have)
}

func checkMemoryWithoutLimit(configured, cgroup int64) finding {
	budget := memory.Budget(int(configured), math.MaxInt64)
	least := budget / 8 * 11
	have := fmt.Sprintf("GOMEMLIMIT is not set, so that the process may take twice memory.budget (%s)%s", mebibytes(budget), cgroupText(cgroup))
	switch {
	case cgroup > 0 && configured > 0 && least > cgroup/5*4:
		return failure(fmt.Sprintf("raise the cgroup's limit to %s, or lower memory.budget to %s; then set GOMEMLIMIT to four fifths of the limit", mebibytes(least/4*5), mebibytes(cgroup/5*4/11*8)), "%s: the kernel may kill the daemon", have)
	case cgroup > 0:
		return warning(toFourFifths(cgroup), "%s", have)
	case configured == 0:
		return warning(fmt.Sprintf("set GOMEMLIMIT=%s or more: memory.budget is half of it, and at most %s", mebibytes(2*budget), mebibytes(budget)), "%s", have)
	}
	return warning(fmt.Sprintf("set GOMEMLIMIT=%s or more: 11/8 of memory.budget, and 6 KiB for each client", mebibytes(least)), "%s", have)
}

func cgroupText(limit int64) string {
	if limit == 0 {
		return ""
	}
	return ", the memory limit of the cgroup " + mebibytes(limit)
}

func toFourFifths(cgroup int64) string {
	return fmt.Sprintf("set GOMEMLIMIT=%s, four fifths of the cgroup's limit", mebibytes(cgroup/5*4))
}

func mebibytes(n int64) string { return fmt.Sprintf("%dMiB", n>>20) }

// cgroupMemory returns the least memory limit of the process's cgroup and of those above it; 0:
// there is none, or none is known.
func cgroupMemory(root fs.FS) int64 {
	text, _ := fs.ReadFile(root, "proc/self/cgroup") // there is none but on Linux
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		folder, file := "sys/fs/cgroup", "memory.max"
		switch {
		case slices.Contains(strings.Split(parts[1], ","), "memory"): // version 1
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case parts[1] != "":
			continue
		}
		for group := path.Join("/", parts[2]); ; group = path.Dir(group) {
			least = min(least, cgroupLimit(root, path.Join(folder, group, file)))
			if group == "/" {
				break
			}
		}
	}
	if least > noCgroupLimit {
		return 0
	}
	return least
}

// noCgroupLimit is less than what version 1 says if there is no limit.
const noCgroupLimit = 1 << 60

// cgroupLimit reads a limit; math.MaxInt64: there is none.
func cgroupLimit(root fs.FS, file string) int64 {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return math.MaxInt64
	}
	var limit int64
	if _, err := fmt.Sscan(string(text), &limit); err != nil { // max
		return math.MaxInt64
	}
	return limit
}

const syncRemedy = "run a time service, such as chrony or systemd-timesyncd"

func checkClock() finding {
	switch synchronised, err := clockIsSynchronised(); {
	case err != nil:
		return ok("whether the clock is synchronised is not known: %v", err)
	case !synchronised:
		return warning(syncRemedy, "the kernel does not call its clock synchronised; tokens, ttl and history.age go by this clock")
	}
	return ok("the kernel calls its clock synchronised")
}

// checkOrigins judges an origin by the setting cors.origins.
func checkOrigins(origins []string, origin string) finding {
	if slices.Contains(origins, "*") || slices.Contains(origins, origin) {
		return ok("cors.origins allows pages of %s", origin)
	}
	return failure("add "+origin+" to cors.origins, unless the pages and the daemon have the same origin", "cors.origins does not have %s", origin)
}
