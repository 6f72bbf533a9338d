package loadtest

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// SearchConfig asks, for each period, how many clients the server holds.
type SearchConfig struct {
	// Broadcast is every trial's, but for its Clients and its Period. The first trial
	// has as many Clients as it says.
	Broadcast BroadcastConfig
	Periods   []time.Duration
}

// Bounds of a search.
const (
	// searchPrecision is how near to each other the clients that are held and those
	// that are not must come, as a share of the latter; and how far a search steps
	// down when the full trial fails.
	searchPrecision = 0.05
	// exploringBursts are enough to see that a server is overrun, and a quarter of
	// what the result takes.
	exploringBursts = 25
	// spareDescriptors stay free in both processes besides the connections: a limit
	// that is met to the last descriptor measures the limit's edges.
	spareDescriptors = 128
)

// What can keep a search from finding more clients.
const (
	LimitServer    = "server"
	LimitGenerator = "generator"
	LimitOpenFiles = "open files"
)

// A SearchResult is how many clients the server held at each period. Members of
// its JSON are added, never changed.
type SearchResult struct {
	Scenario      string        `json:"scenario"` // broadcast-search
	Started       time.Time     `json:"started"`
	Environment   Environment   `json:"environment"`
	Dialect       string        `json:"dialect"`
	Mode          string        `json:"mode"` // see Parameters
	Format        string        `json:"format,omitempty"`
	Stateless     bool          `json:"stateless"`
	Subscriptions int           `json:"subscriptions"` // of each client
	Topics        int           `json:"topics"`
	MessageBytes  int           `json:"message_bytes"` // 0: 20 short strings
	Bursts        int           `json:"bursts"`        // that Clients were held for
	Exploring     int           `json:"exploring_bursts"`
	Precision     float64       `json:"precision"` // Clients are at most this share below the fewest that were not held
	Points        []SearchPoint `json:"points"`
}

// A SearchPoint is the result for one period.
type SearchPoint struct {
	PeriodMS  float64 `json:"period_ms"`
	Clients   int     `json:"clients"`    // the most that were held over all bursts; 0: none were
	LimitedBy string  `json:"limited_by"` // server, generator or open files
	Reason    string  `json:"reason"`     // why the fewest clients that were not held were not
	Trials    []Trial `json:"trials"`     // in the order they were made
	Result    *Result `json:"result"`     // of the trial that held Clients; absent if none
}

// A Trial is one test of a search, with a server of its own.
type Trial struct {
	Clients        int     `json:"clients"`
	Bursts         int     `json:"bursts"`
	Held           bool    `json:"held"`
	InTime         int     `json:"in_time"` // bursts; an exploring trial ends with the first that is late
	CompletionMS   float64 `json:"completion_max_ms"`
	GeneratorBound bool    `json:"generator_bound"`
	Reason         string  `json:"reason,omitempty"` // why it was not held

	result *Result
}

// RunSearch runs the search. The error says why it is incomplete; the points found
// until then are in the result.
func RunSearch(ctx context.Context, cfg SearchConfig, p Progress) (SearchResult, error) {
	most, err := cfg.check()
	if err != nil {
		return SearchResult{}, err
	}
	if p == nil {
		p = silent{}
	}
	return searchAll(ctx, cfg, most, p, runTrial)
}

// Check returns a ConfigError of every fault, or nil.
func (c *SearchConfig) Check() error {
	fault := unless(len(c.Periods) > 0, "--period: name at least one period")
	each := c.Broadcast
	for _, period := range c.Periods {
		each.Period = min(each.Period, period)
	}
	return asConfigError(fault, each.Check(), each.checkAlone("a search does not work with agents"))
}

// check returns the most clients that open files allow.
func (c *SearchConfig) check() (int, error) {
	if err := c.Check(); err != nil {
		return 0, err
	}
	limit, err := raiseOpenFiles(2 * mostClients)
	if err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	if most := mostWithin(limit, max(c.Broadcast.Publishers, c.Broadcast.MaxPublishers)); most >= c.Broadcast.Topics {
		return most, nil
	}
	return 0, ConfigError{fmt.Errorf("--topics: the limit of %d open files is too low for one client on each of %d topics", limit, c.Broadcast.Topics)}
}

// mostWithin returns how many clients a limit of open files leaves room for, in
// the generator and in a server that it starts, which has the same.
func mostWithin(limit uint64, publishers int) int {
	room := int(min(limit, 2*mostClients)) - spareFiles - spareDescriptors - publishers
	return max(min(room, mostClients), 0)
}

// A trialRunner runs one trial. It is replaced by tests.
type trialRunner func(ctx context.Context, cfg BroadcastConfig, exploring bool, p Progress) (Result, error)

func runTrial(ctx context.Context, cfg BroadcastConfig, exploring bool, p Progress) (Result, error) {
	b := newBroadcast(cfg)
	b.giveUp = exploring
	return execute(ctx, cfg.Common, b, p)
}

// searchAll searches one period after the other. Where one ended the next begins:
// a longer period holds more.
func searchAll(ctx context.Context, cfg SearchConfig, most int, p Progress, run trialRunner) (SearchResult, error) {
	b := cfg.Broadcast
	r := SearchResult{
		Scenario: "broadcast-search", Started: time.Now(), Environment: Here(),
		Dialect: b.Dialect, Mode: b.modeName(), Format: b.formatName(), Stateless: b.Stateless, Subscriptions: b.Subscriptions, Topics: b.Topics, MessageBytes: b.MessageBytes,
		Bursts: b.Bursts, Exploring: min(exploringBursts, b.Bursts), Precision: searchPrecision, Points: []SearchPoint{},
	}
	begin := b.Clients
	for _, period := range cfg.Periods {
		b.Period = period
		point, err := searchPeriod(ctx, b, begin, most, p, run)
		if err != nil {
			return r, err
		}
		r.Points = append(r.Points, point)
		if point.Clients > 0 {
			begin = point.Clients
		}
	}
	return r, nil
}

func searchPeriod(ctx context.Context, b BroadcastConfig, begin, most int, p Progress, run trialRunner) (SearchPoint, error) {
	s := newSearch(begin, most, b.Topics, b.Bursts)
	for {
		clients, bursts, done := s.next()
		if done {
			return s.point(b.Period), nil
		}
		b.Clients, b.Bursts = clients, bursts
		p.Notice(fmt.Sprintf("period %v: %d clients, %d bursts", b.Period, clients, bursts))
		t, err := try(ctx, b, s.exploring(), s.held > 0 || s.confirming > 0, p, run)
		if err != nil {
			return SearchPoint{}, fmt.Errorf("period %v, %d clients: %w", b.Period, clients, err)
		}
		p.Notice(fmt.Sprintf("period %v: %d clients, %d bursts: %s", b.Period, clients, bursts, t.outcome()))
		s.learn(t)
	}
}

// try runs a trial. A test that cannot be made although one with fewer clients
// could is a trial that failed; else it is an error.
func try(ctx context.Context, b BroadcastConfig, exploring, othersHeld bool, p Progress, run trialRunner) (Trial, error) {
	t := Trial{Clients: b.Clients, Bursts: b.Bursts}
	r, err := run(ctx, b, exploring, p)
	switch {
	case err != nil && (ctx.Err() != nil || !othersHeld):
		return t, err
	case err != nil:
		t.Reason = err.Error()
		return t, nil
	}
	t.result, t.GeneratorBound = &r, r.GeneratorBound()
	if r.Bursts != nil {
		t.InTime, t.CompletionMS = r.Bursts.InTime, r.Bursts.Completion.MaxMS
	}
	failed := r.Failed()
	t.Held = len(failed) == 0
	if !t.Held {
		t.Reason = failed[0]
	}
	return t, nil
}

func (t *Trial) outcome() string {
	if t.Held {
		return fmt.Sprintf("passed; the slowest burst was complete after %.1f ms", t.CompletionMS)
	}
	return "did not pass: " + t.Reason
}

// A search finds the most clients for which a full trial is held: it doubles until
// one is not (or halves until one is), bisects until both are within
// searchPrecision, all with exploring trials; then the most that were held must be
// held over all bursts, with searchPrecision fewer each time they are not. It does
// no I/O: next says what to try, learn is told how that went.
//
// Clients come in units of one on each topic.
type search struct {
	unit   int // clients
	most   int // clients that open files allow, in whole units
	full   int // bursts
	first  int // clients of the first trial
	trials []Trial

	held   int    // the most clients that were
	failed int    // the fewest that were not; 0: none yet
	why    *Trial // the trial of failed
	// confirming is how many clients the full trials are at; 0 while exploring.
	confirming int
	again      int // clients of the trial that is made once more; 0: none
	done       bool
}

func newSearch(begin, most, unit, bursts int) *search {
	s := &search{unit: unit, most: whole(most, unit), full: bursts}
	s.first = min(max(whole(begin, unit), unit), s.most)
	return s
}

// whole returns the most clients, of at most n, that are the same number on each
// topic.
func whole(n, unit int) int { return n / unit * unit }

func (s *search) exploring() bool { return s.confirming == 0 }

// next returns the trial to make, or that there is no more.
func (s *search) next() (clients, bursts int, done bool) {
	if s.exploring() {
		if clients = cmp.Or(s.again, s.explore()); clients > 0 {
			return clients, min(exploringBursts, s.full), false
		}
		s.confirming = s.held
		s.done = s.held == 0
	}
	return s.confirming, s.full, s.done
}

// explore returns the clients to try next, or 0 if that would tell nothing new.
func (s *search) explore() int {
	switch {
	case len(s.trials) == 0:
		return s.first
	case s.failed == 0 && s.held == s.most:
		return 0
	case s.failed == 0:
		return min(2*s.held, s.most)
	case s.held == 0:
		return whole(s.failed/2, s.unit)
	case float64(s.failed-s.held) <= searchPrecision*float64(s.failed) || s.failed-s.held <= s.unit:
		return 0
	}
	return s.held + max(whole((s.failed-s.held)/2, s.unit), s.unit)
}

// learn is told how the trial that next returned went.
func (s *search) learn(t Trial) {
	s.trials = append(s.trials, t)
	if s.exploring() && !t.Held && s.again == 0 {
		s.again = t.Clients
		return
	}
	s.again = 0
	if !t.Held && (s.failed == 0 || t.Clients <= s.failed) {
		s.failed, s.why = t.Clients, &t
	}
	switch {
	case s.exploring() && t.Held:
		s.held = t.Clients
	case s.exploring():
	case t.Held:
		s.held, s.done = t.Clients, true
	default:
		s.held = 0
		s.confirming = stepDown(t.Clients, s.unit)
		s.done = s.confirming == 0
	}
}

// stepDown returns searchPrecision fewer clients, at least a unit fewer.
func stepDown(clients, unit int) int {
	return min(whole(int(float64(clients)*(1-searchPrecision)), unit), clients-unit)
}

func (s *search) point(period time.Duration) SearchPoint {
	p := SearchPoint{PeriodMS: stats.Milliseconds(period), Clients: s.held, Trials: s.trials}
	switch {
	case s.why == nil:
		p.LimitedBy = LimitOpenFiles
		p.Reason = fmt.Sprintf("the limit of open files allows at most %d clients", s.most)
	case s.why.GeneratorBound:
		p.LimitedBy, p.Reason = LimitGenerator, s.why.Reason
	default:
		p.LimitedBy, p.Reason = LimitServer, s.why.Reason
	}
	if s.held > 0 {
		p.Result = s.trials[len(s.trials)-1].result
	}
	return p
}

// ExitCode returns what a process that ran the search exits with.
func (r *SearchResult) ExitCode() int {
	code := ExitOK
	for _, p := range r.Points {
		switch {
		case p.Clients == 0:
			return ExitMissed
		case p.LimitedBy == LimitGenerator:
			code = ExitGeneratorBound
		}
	}
	return code
}
