package main

import (
	"fmt"
	"strconv"
	"time"
)

// A Point is one load test of the plan: a broadcast of which one quantity, its
// series', differs from the others'.
type Point struct {
	Series        string  `json:"series"`
	X             float64 `json:"x"` // that quantity
	Clients       int     `json:"clients"`
	Topics        int     `json:"topics"`
	Subscriptions int     `json:"subscriptions"` // of each session
	MessageBytes  int     `json:"message_bytes"` // 0: 20 short strings
	PeriodMS      int     `json:"period_ms"`
	Bursts        int     `json:"bursts"` // recorded; one comes before those
}

// A series is a row of points, and what its axis is.
type series struct {
	name  string
	title string
	axis  string // of the quantity, with its unit
	about string // what is the same for all points
}

// allSeries are in the order of the page.
var allSeries = []series{
	{"clients", "Clients", "clients", "One topic. Each burst sends 20 short strings to every client."},
	{"topics", "Topics", "topics", "The same clients, spread evenly over the topics. Each burst is one message on every topic, so the number of deliveries stays the same, and the number of publishes grows."},
	{"subscriptions", "Subscriptions per session", "subscriptions per session", "One topic carries messages. The other topics of a session are quiet, and have no other subscriber, so the memory of a subscription includes that of its topic."},
	{"bytes", "Message size", "bytes of payload", "One topic. Only the payload grows."},
	{"rate", "Publish rate", "messages per second on one topic", "The same clients on one topic. Only the period shrinks."},
}

// fullPlan is what the page is made of; about nine minutes.
func fullPlan() []Point {
	var plan []Point
	for _, clients := range []int{1000, 2000, 5000, 10_000, 18_000} {
		plan = append(plan, Point{Series: "clients", X: float64(clients), Clients: clients, PeriodMS: 2000, Bursts: 10})
	}
	for _, topics := range []int{1, 10, 100, 1000, 10_000} {
		plan = append(plan, Point{Series: "topics", X: float64(topics), Clients: 10_000, Topics: topics, PeriodMS: 4000, Bursts: 5})
	}
	for _, subscriptions := range []int{1, 10, 100, 1000} {
		plan = append(plan, Point{Series: "subscriptions", X: float64(subscriptions), Clients: 500, Subscriptions: subscriptions, PeriodMS: 1000, Bursts: 10})
	}
	for _, size := range []int{10, 100, 1024, 4096, 16_384, 65_536} {
		plan = append(plan, Point{Series: "bytes", X: float64(size), Clients: 500, MessageBytes: size, PeriodMS: 1000, Bursts: 10})
	}
	for _, rate := range []int{1, 2, 5, 10, 20} {
		plan = append(plan, Point{Series: "rate", X: float64(rate), Clients: 1000, PeriodMS: 1000 / rate, Bursts: 10 * rate})
	}
	return complete(plan)
}

// quickPlan shows within about a minute whether everything works; its figures are
// of too few clients to say more.
func quickPlan() []Point {
	var plan []Point
	for _, clients := range []int{100, 200, 500} {
		plan = append(plan, Point{Series: "clients", X: float64(clients), Clients: clients, PeriodMS: 300, Bursts: 4})
	}
	for _, topics := range []int{1, 10, 100} {
		plan = append(plan, Point{Series: "topics", X: float64(topics), Clients: 500, Topics: topics, PeriodMS: 300, Bursts: 4})
	}
	for _, subscriptions := range []int{1, 10, 100} {
		plan = append(plan, Point{Series: "subscriptions", X: float64(subscriptions), Clients: 100, Subscriptions: subscriptions, PeriodMS: 300, Bursts: 4})
	}
	for _, size := range []int{10, 4096, 65_536} {
		plan = append(plan, Point{Series: "bytes", X: float64(size), Clients: 100, MessageBytes: size, PeriodMS: 300, Bursts: 4})
	}
	for _, rate := range []int{2, 10} {
		plan = append(plan, Point{Series: "rate", X: float64(rate), Clients: 200, PeriodMS: 1000 / rate, Bursts: rate})
	}
	return complete(plan)
}

// complete fills in what a series does not vary.
func complete(plan []Point) []Point {
	for i := range plan {
		plan[i].Topics = max(plan[i].Topics, 1)
		plan[i].Subscriptions = max(plan[i].Subscriptions, 1)
	}
	return plan
}

// mostPublishers is how many messages of a burst are under way at once, at most.
const mostPublishers = 1000

// arguments returns the point's command line. Flags that would say the default are
// left out.
func (p Point) arguments() []string {
	args := []string{
		"loadtest", "broadcast", "--json=-", "--quiet",
		"--clients=" + strconv.Itoa(p.Clients),
		fmt.Sprintf("--period=%dms", p.PeriodMS),
		"--bursts=" + strconv.Itoa(p.Bursts), "--warmup-bursts=1",
	}
	if p.Topics > 1 {
		publishers := strconv.Itoa(min(p.Topics, mostPublishers))
		args = append(args, "--topics="+strconv.Itoa(p.Topics), "--publishers="+publishers, "--max-publishers="+publishers)
	}
	if p.Subscriptions > 1 {
		args = append(args, "--subscriptions="+strconv.Itoa(p.Subscriptions))
	}
	if p.MessageBytes > 0 {
		args = append(args, "--message-bytes="+strconv.Itoa(p.MessageBytes))
	}
	return args
}

// Paces of a machine that is slow, for planning.
const (
	connectsPerSecond   = 2500
	subscribesPerSecond = 100_000
	restOfTest          = 2500 * time.Millisecond // starting and stopping the server, settling, lingering
)

// takes returns how long the point takes, about.
func (p Point) takes() time.Duration {
	connecting := time.Duration(p.Clients) * time.Second / connectsPerSecond
	subscribing := time.Duration(p.Clients*p.Subscriptions) * time.Second / subscribesPerSecond
	return restOfTest + connecting + subscribing + time.Duration(1+p.Bursts)*time.Duration(p.PeriodMS)*time.Millisecond
}
