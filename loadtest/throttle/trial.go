package throttle

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
)

// A trial is one run with one setting, against a server and a back end of its own.
type trial struct {
	cfg       *Config
	setting   Setting
	authority string // of the server
	pid       int    // 0: not known
	backend   *backend

	begin, end time.Time
	users      []*user

	completed atomic.Int64 // calls so far, for whoever looks on
}

// startTrial makes everything ready. Who gets a trial must stop it.
func startTrial(ctx context.Context, cfg *Config, s Setting, p loadtest.Progress) (*trial, func() error, error) {
	secret := cfg.Secret
	if secret == "" {
		secret = webhook.NewSecret()
	}
	b, err := startBackend(cfg, secret)
	if err != nil {
		return nil, nil, err
	}
	t := &trial{cfg: cfg, setting: s, backend: b}
	stop, err := t.startServer(ctx, secret, p)
	if err != nil {
		b.stop()
		return nil, nil, err
	}
	return t, func() error { defer b.stop(); return stop() }, nil
}

// patience is how long a user waits for any answer: more than all that may take
// long in it.
func (t *trial) patience() time.Duration {
	return t.cfg.Wait + t.cfg.hookTimeout(t.setting) + t.cfg.Tolerance
}

// run lets all users live, and returns what they noted together.
func (t *trial) run(ctx context.Context, p loadtest.Progress) Row {
	t.makeUsers()
	before := t.account()
	t.begin = time.Now()
	t.end = t.begin.Add(t.cfg.Duration)
	stop := t.tell(p)
	var living sync.WaitGroup
	for i, u := range t.users {
		living.Go(func() { u.live(ctx, t.begin.Add(t.cfg.Step.begin(i))) })
	}
	living.Wait()
	stop()
	return t.row(before, t.account())
}

func (t *trial) makeUsers() {
	tag := strings.ToLower(rand.Text()[:8])
	for i := range t.cfg.Users {
		t.users = append(t.users, &user{
			asker: newAsker(t.authority, t.patience()), trial: t, pauses: t.cfg.newPauses(i),
			ledger: newLedger(fmt.Sprintf("loadtest.%s.u%05d", tag, i+1)), book: t.newBook(),
		})
	}
}

func (t *trial) newBook() *book { return newBook(t.cfg.Wait+t.cfg.Tolerance, t.cfg.interval()) }

// Bounds of a course over the run.
const (
	coursePoints  = 60
	leastInterval = 10 * time.Millisecond
)

// interval is that of a course's points: a second of a minute.
func (c *Config) interval() time.Duration { return max(c.Duration/coursePoints, leastInterval) }

// tellEvery is how often a Progress is updated.
const tellEvery = 250 * time.Millisecond

// tell tells how the run goes until the function that it returns is called.
func (t *trial) tell(p loadtest.Progress) (stop func()) {
	quit := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(tellEvery)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				p.Update(t.status())
			}
		}
	})
	return func() { close(quit); telling.Wait() }
}

// status says how many calls there may be within the run: those that are under way at
// its end come on top.
func (t *trial) status() loadtest.Status {
	done := t.completed.Load()
	return loadtest.Status{
		Phase: t.setting.String(), Done: int(done), Total: max(int(done), t.cfg.most(t.setting)), Unit: "calls",
		Deliveries: done, Elapsed: time.Since(t.begin),
	}
}

// An account is what was used up to some moment.
type account struct {
	at          time.Time
	server, own time.Duration
}

func (t *trial) account() account {
	server, _ := loadtest.ProcessCPU(t.pid)
	return account{time.Now(), server, loadtest.OwnCPU()}
}

// row adds up what all users noted.
func (t *trial) row(before, after account) Row {
	all, delivered := t.newBook(), Delivered{}
	for _, u := range t.users {
		u.close()
		all.merge(u.book)
		delivered.add(u.ledger.close())
	}
	return newRow(t, all, delivered, before, after)
}
