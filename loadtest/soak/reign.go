package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/child"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An ending is how a daemon's time is over.
type ending uint8

const (
	kept      ending = iota // told to stop, and started again with its topics: the epoch stays
	planned                 // told to stop, and started again without: a new epoch
	killed                  // kill -9: with a log the epoch stays; without, a new epoch, whatever is left
	stillborn               // with a log: the next daemon was killed, too, while it started
)

// An environment is one daemon's settings, which only a restart changes.
type environment struct {
	Retention
	queue, unacked, answerFrames int
	lane                         string
}

// drawEnvironment draws settings, half of the time such as make subscribers that
// are late lose messages.
func drawEnvironment(rng *rand.Rand, store bool) environment {
	histories := []Retention{
		{1000, 1 << 20, time.Minute}, {1000, 1 << 20, time.Minute},
		{200, 512 << 10, 10 * time.Second}, {60, 256 << 10, 4 * time.Second},
	}
	if store { // messages are not to expire while nobody serves
		histories = []Retention{{1000, 1 << 20, time.Hour}, {4000, 4 << 20, time.Hour}}
	}
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	e := environment{
		Retention: histories[rng.IntN(len(histories))],
		queue:     pick(32, 32, 4, 1), unacked: pick(1024, 64), answerFrames: pick(1000, 1000, 10),
		lane: "handoff",
	}
	if rng.IntN(4) == 0 {
		e.lane = "channel"
	}
	return e
}

func (e *environment) flags() []string {
	return []string{
		"--log-level=warn", "--lane=" + e.lane, "--listen-tcp=127.0.0.1:0",
		"--history-messages=" + strconv.Itoa(e.Messages), "--history-bytes=" + strconv.Itoa(e.Bytes), "--history-age=" + e.Age.String(),
		"--session-queue=" + strconv.Itoa(e.queue), "--session-unacked=" + strconv.Itoa(e.unacked),
		"--poll-answer-frames=" + strconv.Itoa(e.answerFrames),
	}
}

// A reign is the daemons that run one after the other behind the proxies. One
// goroutine stages it; number may be read by any.
type reign struct {
	command    []string
	secret     string // a variable of the daemon's environment
	folder     string // holds the state; removed by end
	ports      *ports
	ledger     *ledger
	retentions *retentions
	rng        *rand.Rand
	state      bool   // the daemon keeps its topics over planned restarts
	store      string // sync mode of the daemon's log; empty: it has none

	server *child.Child
	epoch  string       // of server, and what a kept epoch must be
	number atomic.Int64 // rises when a daemon is about to end, and when the next is ready
	staged map[ending]int
}

func newReign(ctx context.Context, cfg Config, secret string, p *ports, l *ledger, r *retentions) (*reign, error) {
	folder, err := os.MkdirTemp("", "pubsubd-soak-")
	if err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	k := &reign{
		command: cfg.ServerCommand, secret: secret, folder: folder, ports: p, ledger: l, retentions: r,
		rng: rand.New(rand.NewPCG(cfg.Seed, 'r')), state: cfg.Store == "", store: cfg.Store, staged: map[ending]int{},
	}
	if err := k.begin(ctx); err != nil {
		k.end()
		return nil, err
	}
	return k, nil
}

// begin starts a daemon. The first one shows whether it can keep its topics.
func (k *reign) begin(ctx context.Context) error {
	e := drawEnvironment(k.rng, k.store != "")
	k.retentions.add(k.ledger.since(time.Now()), e.Retention)
	s, err := child.Server(ctx, k.arguments(e), k.secret)
	if err != nil && s != nil && k.state && k.number.Load() == 0 && s.ExitCode() == 2 {
		k.state = false
		s, err = child.Server(ctx, k.arguments(e), k.secret)
	}
	if err != nil {
		return err
	}
	k.server = s
	if k.epoch, err = askEpoch(ctx, s.Addresses().Public, k.ledger.names[0]); err != nil {
		return fmt.Errorf("ask the server's epoch: %w", err)
	}
	k.number.Add(1)
	k.ports.lead(s.Addresses())
	return nil
}

func (k *reign) arguments(e environment) []string {
	args := append(append([]string{}, k.command...), e.flags()...)
	if k.state {
		args = append(args, "--store", k.stateFolder(), "--store-sync=stop")
	}
	if k.store != "" {
		args = append(args, "--store", filepath.Join(k.folder, "store"), "--store-sync", k.store)
	}
	return args
}

func (k *reign) stateFolder() string { return filepath.Join(k.folder, "state") }

// run ends one daemon after another, each after about every, until ctx ends; the
// last one runs on.
func (k *reign) run(ctx context.Context, every time.Duration) error {
	var bag []ending
	for {
		wait := every/2 + time.Duration(k.rng.Int64N(int64(every)))
		select {
		case <-ctx.Done():
			return nil
		case <-k.server.Gone():
			k.fault(Daemon, "%v", k.server.Ended())
			return errors.New("the daemon ended by itself")
		case <-time.After(wait):
		}
		if len(bag) == 0 {
			bag = k.fillBag()
		}
		if err := k.change(context.WithoutCancel(ctx), bag[0]); err != nil {
			return err
		}
		bag = bag[1:]
	}
}

// fillBag returns every ending there is, in an order of its own. A kill comes after a
// start with the state: it must not come to life a second time. With a log, most are
// kills, and there is one epoch from the beginning to the end.
func (k *reign) fillBag() (bag []ending) {
	groups := [][]ending{{killed}, {planned}}
	switch {
	case k.store != "":
		groups = [][]ending{{killed}, {killed}, {killed}, {stillborn}, {kept}}
	case k.state:
		groups = [][]ending{{kept, killed}, {planned}, {kept}}
	}
	k.rng.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	return slices.Concat(groups...)
}

// change ends the daemon and starts the next, and judges its epoch.
func (k *reign) change(ctx context.Context, how ending) error {
	before := k.epoch
	k.number.Add(1)
	if how == killed || how == stillborn {
		k.server.Kill()
	} else if err := k.server.Stop(); err != nil {
		k.fault(Daemon, "after the signal to stop, the daemon ended with: %v%s", err, k.server.LastWords())
	}
	k.ports.lead(child.Addresses{})
	k.listen()
	if how == planned {
		_ = os.RemoveAll(k.stateFolder())
	}
	time.Sleep(time.Duration(k.rng.IntN(500)) * time.Millisecond) // for how long nobody serves
	if how == stillborn {
		k.killInStart(ctx)
	}
	if err := k.begin(ctx); err != nil {
		k.fault(Daemon, "the daemon did not start again: %v", err)
		return err
	}
	k.staged[how]++
	switch same := how == kept || k.store != ""; {
	case same && k.epoch != before:
		k.fault(Epoch, "the daemon started with its topics, but its epoch changed from %s to %s", before, k.epoch)
	case !same && !olderEpoch(before, k.epoch):
		k.fault(Epoch, "the daemon started without its state, and its epoch changed from %s to %s, which is not newer", before, k.epoch)
	}
	return nil
}

// killInStart starts a daemon, and kills it at a random instant while it reads its log, or
// shortly after.
func (k *reign) killInStart(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(5+k.rng.IntN(200))*time.Millisecond)
	defer cancel()
	args := append(k.arguments(drawEnvironment(k.rng, true)), "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0")
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Env = append(os.Environ(), k.secret)
	if out, err := c.CombinedOutput(); ctx.Err() == nil {
		k.fault(Daemon, "the daemon ended by itself while it started: %v: %.500s", err, out)
	}
}

// listen looks for what a daemon must never say.
func (k *reign) listen() {
	if alarm := k.server.Alarm(); alarm != "" {
		k.fault(Daemon, "it said: %s", alarm)
	}
}

func (k *reign) fault(kind Kind, format string, args ...any) {
	k.ledger.faults.add(Fault{Kind: kind, Who: "daemon", AtMS: int64(k.ledger.since(time.Now())), Detail: fmt.Sprintf(format, args...)})
}

// end stops the last daemon and leaves nothing behind.
func (k *reign) end() {
	if k.server != nil && !k.server.IsGone() {
		if err := k.server.Stop(); err != nil {
			k.fault(Daemon, "after the signal to stop, the daemon ended with: %v%s", err, k.server.LastWords())
		}
		k.listen()
	}
	_ = os.RemoveAll(k.folder)
}

// askEpoch asks the daemon at address for its epoch: a stateless poll without a
// position is answered at once.
func askEpoch(ctx context.Context, address, topic string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/poll?topic="+topic, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	content, err := wire.NewDecoder(resp.Body).Next()
	if err != nil {
		return "", err
	}
	if content.Hello == nil || len(content.Hello.Positions) != 1 {
		return "", errors.New("the answer did not begin with hello")
	}
	return content.Hello.Positions[0].Epoch, nil
}
