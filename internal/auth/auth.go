// Package auth identifies the principal of a request and decides what it may do. Its only
// authority today is Open, which allows everything.
package auth

// A Principal is the sender of a request.
type Principal struct {
	Name string // empty if anonymous
}

// Credentials are what a request carries to identify its sender. Never log them.
type Credentials struct {
	Authorization string // the raw header; empty: none
}

// Action is what a principal wants to do with a topic.
type Action string

// The actions.
const (
	Publish   Action = "publish"
	Subscribe Action = "subscribe" // and read
	Delete    Action = "delete"    // the messages in a topic's history
)

// Open is the authority of a daemon without authorisation. Every principal is anonymous and
// may do everything.
type Open struct{}

// Identify returns the anonymous principal.
func (Open) Identify(Credentials) (Principal, error) { return Principal{}, nil }

// Allow allows every action.
func (Open) Allow(Principal, Action, string) error { return nil }
