// Package throttle measures what a server's limits make of more users than it
// serves at a time, as the article on service throttling in WCF did: users in closed
// loops, each a session that publishes, and calls that take long because each publish
// passes a hook to a back end, which is part of the instrument.
//
// It looks at what the article's service did not do: every user that waits must be
// told so within the time that the server promises, and every message that was taken
// must be delivered to its user once and in order, however starved the others are.
package throttle
