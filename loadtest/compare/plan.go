package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A manner is how clients of a scenario get their messages.
type manner string

const (
	byPoll   manner = "poll"   // each answer is followed by the next poll
	byStream manner = "stream" // one answer that does not end
	inCollab manner = "collab" // whichever of a server's ways suits small topics
)

// A scenario is one table of the comparison: what the load generator does, the
// same to every server.
type scenario struct {
	name    string
	title   string
	manner  manner
	args    []string      // of "pubsubd loadtest", but for who the server is
	clients int           // whose resident bytes are counted
	rounds  int           // at most
	long    bool          // skipped by contenders that are only there for perspective
	lasts   time.Duration // about, for the remaining time
}

const settle = 500 * time.Millisecond

// scenarios returns all, in the order in which they are run. Sizes of a quick
// comparison show that everything works, and nothing else.
func scenarios(quick bool) []scenario {
	const warmup = 2
	all := []scenario{
		broadcast(byPoll, 1000, 25, warmup, 150*time.Millisecond),
		broadcast(byPoll, 5000, 25, warmup, 400*time.Millisecond),
		broadcast(byPoll, 10000, 25, warmup, 600*time.Millisecond),
		broadcast(byStream, 1000, 25, warmup, 100*time.Millisecond),
		broadcast(byStream, 5000, 25, warmup, 300*time.Millisecond),
		broadcast(byStream, 10000, 25, warmup, 400*time.Millisecond),
		collaboration(1000, 100, 5*time.Second),
		memory(byPoll, 15000),
		memory(byStream, 15000),
	}
	if quick {
		all = []scenario{
			broadcast(byPoll, 200, 5, 1, 50*time.Millisecond),
			broadcast(byStream, 200, 5, 1, 50*time.Millisecond),
			collaboration(50, 10, time.Second),
			memory(byPoll, 200),
			memory(byStream, 200),
		}
	}
	return all
}

// words for a manner in names and titles.
var words = map[manner]struct{ name, title string }{
	byPoll:   {"long-poll", "Long poll"},
	byStream: {"stream", "Stream"},
}

// broadcast is one topic with many clients.
func broadcast(m manner, clients, bursts, warmup int, period time.Duration) scenario {
	return scenario{
		name:    fmt.Sprintf("%s-%d", words[m].name, clients),
		title:   fmt.Sprintf("%s, one topic, %d clients", words[m].title, clients),
		manner:  m,
		args:    broadcastArgs(clients, bursts, warmup, period, settle),
		clients: clients,
		rounds:  4,
		long:    clients == 1000 || clients > 5000,
		lasts:   time.Duration(bursts+warmup)*period + overhead(clients),
	}
}

func broadcastArgs(clients, bursts, warmup int, period, settle time.Duration) []string {
	return []string{"broadcast",
		"--clients", strconv.Itoa(clients), "--period", period.String(),
		"--bursts", strconv.Itoa(bursts), "--warmup-bursts", strconv.Itoa(warmup), "--settle", settle.String()}
}

// collaboration is many topics with two clients each, who both publish once a
// second.
func collaboration(topics, publishers int, duration time.Duration) scenario {
	const warmup = time.Second
	return scenario{
		name:   "collab",
		title:  fmt.Sprintf("Collaboration, %d topics, 2 clients each", topics),
		manner: inCollab,
		args: []string{"collab", "--pattern", "steady", "--topics", strconv.Itoa(topics), "--clients-per-topic", "2",
			"--period", "1s", "--warmup", warmup.String(), "--duration", duration.String(), "--settle", settle.String(),
			"--publishers", strconv.Itoa(publishers), "--max-publishers", strconv.Itoa(publishers)},
		clients: 2 * topics,
		rounds:  4,
		lasts:   warmup + duration + overhead(2*topics),
	}
}

// memory is clients that wait, and one message at the end which shows that they
// do. The server gets longer to come to rest.
func memory(m manner, clients int) scenario {
	const rest = 2 * time.Second
	return scenario{
		name:    "memory-" + words[m].name,
		title:   fmt.Sprintf("Memory of %d clients that wait: %s", clients, strings.ToLower(words[m].title)),
		manner:  m,
		args:    broadcastArgs(clients, 1, 0, 2*time.Second, rest),
		clients: clients,
		rounds:  1,
		lasts:   rest + overhead(clients),
	}
}

// overhead is about what starting, connecting, draining and stopping take.
func overhead(clients int) time.Duration {
	return 2*time.Second + settle + time.Duration(clients)*time.Second/5000
}

// A step is one measurement to be made.
type step struct {
	scenario  scenario
	contender contender
	round     int
}

// args are those of "pubsubd loadtest" that say what is measured, and so, with
// the names and the round, which measurement it is.
func (s step) args() []string {
	return append(slices.Clone(s.scenario.args), s.contender.speaks[s.scenario.manner]...)
}

// plan returns the steps in the order in which they are made. A round goes through
// all contenders before the next begins, and each begins with another contender,
// so that what changes on the machine meanwhile does not fall on one of them.
func plan(scenarios []scenario, contenders []contender, rounds int) []step {
	var steps []step
	for _, s := range scenarios {
		var takePart []contender
		for _, c := range contenders {
			if c.takesPart(s) {
				takePart = append(takePart, c)
			}
		}
		for round := range min(s.rounds, rounds) {
			for i := range takePart {
				steps = append(steps, step{s, takePart[(i+round)%len(takePart)], round + 1})
			}
		}
	}
	return steps
}

// only keeps the scenarios and contenders that the list names. A list without
// scenarios keeps all of them, and likewise with contenders.
func only(list string, scenarios []scenario, contenders []contender) ([]scenario, []contender, error) {
	if list == "" {
		return scenarios, contenders, nil
	}
	var s []scenario
	var c []contender
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		j := slices.IndexFunc(contenders, func(c contender) bool { return c.name == name })
		switch {
		case i >= 0:
			s = append(s, scenarios[i])
		case j >= 0:
			c = append(c, contenders[j])
		default:
			return nil, nil, fmt.Errorf("-only: %q is neither a scenario (%s) nor a server (%s)",
				name, names(scenarios, func(s scenario) string { return s.name }), names(contenders, func(c contender) string { return c.name }))
		}
	}
	if s == nil {
		s = scenarios
	}
	if c == nil {
		c = contenders
	}
	return s, c, nil
}

func names[T any](all []T, name func(T) string) string {
	var list []string
	for _, one := range all {
		list = append(list, name(one))
	}
	return strings.Join(list, ", ")
}
