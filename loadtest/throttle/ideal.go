package throttle

import (
	"math/rand/v2"
	"time"
)

// Ideal is what users could do if nothing but the back end took time.
type Ideal struct {
	Within    int     `json:"completed_within"` // calls completed within the run
	Completed int     `json:"completed"`        // calls begun within it
	MeanMS    float64 `json:"mean_ms"`
}

// ideal lets every user, with the pauses that it will make, call a server without
// limits. What would end with the run ends just after it.
func (c *Config) ideal() Ideal {
	sum := Ideal{MeanMS: milliseconds(c.CallTime)}
	for user := range c.Users {
		sum.add(c.loop(c.Step.begin(user), c.newPauses(user)))
	}
	return sum
}

// most is how many calls a setting lets through within the run at most: its places,
// used back to back.
func (c *Config) most(s Setting) int {
	return min(c.ideal().Within, c.places(s)*c.loop(0, pauses{}).Within)
}

// places is how many calls may be served at a time.
func (c *Config) places(s Setting) int {
	n := min(s.Calls, c.Users, s.Sessions)
	if c.BackendWorkers > 0 {
		n = min(n, c.BackendWorkers)
	}
	return n
}

// loop is one who calls without ever waiting.
func (c *Config) loop(at time.Duration, p pauses) (did Ideal) {
	for at < c.Duration {
		did.Completed++
		if at += c.CallTime; at < c.Duration {
			did.Within++
		}
		at += p.next()
	}
	return did
}

func (i *Ideal) add(other Ideal) {
	i.Within += other.Within
	i.Completed += other.Completed
}

// pauses are those of one user between its calls. The zero value makes none.
type pauses struct {
	mean   time.Duration
	random *rand.Rand
}

func (c *Config) newPauses(user int) pauses {
	return pauses{c.Think, rand.New(rand.NewPCG(c.Seed, uint64(user)))}
}

func (p pauses) next() time.Duration {
	if p.mean == 0 {
		return 0
	}
	return time.Duration(p.random.ExpFloat64() * float64(p.mean))
}
