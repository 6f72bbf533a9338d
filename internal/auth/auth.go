// Package auth answers who a request comes from and what that principal may do.
// Today there is one answer, Open; it is asked in every place that matters.
package auth

// A Principal is who a request comes from.
type Principal struct {
	Name string // empty for anonymous
}

// Credentials are what a request says of who sends it. Secrets: never log them.
type Credentials struct {
	Authorization string // the header, as it came; empty: none
}

// Action is what a principal wants to do with a topic.
type Action string

// The actions.
const (
	Publish   Action = "publish"
	Subscribe Action = "subscribe" // and read
	Delete    Action = "delete"    // what a topic's history holds
)

// Open is the authority of a daemon without authorisation: everyone is anonymous
// and may do everything.
type Open struct{}

// Identify returns the anonymous principal.
func (Open) Identify(Credentials) (Principal, error) { return Principal{}, nil }

// Allow allows.
func (Open) Allow(Principal, Action, string) error { return nil }
