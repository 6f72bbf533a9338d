package wire

// What the admin listener answers in JSON. It is for operators, and no part of /v1.

// SessionList answers GET /sessions?limit=&sort= on the admin listener: of the open
// sessions those that come first, and how many there are.
type SessionList struct {
	Open      int             `json:"open"`      // sessions, listed or not
	Stateless int             `json:"stateless"` // stateless polls in progress, which are not listed
	Sessions  []ListedSession `json:"sessions"`
}

// ListedSession is what an operator may know of a session. It has a number in place
// of its id: the id is a capability, and even a part of it or its hash would let
// others tell whose session it is. A number says nothing but which was opened first.
type ListedSession struct {
	Number        uint64 `json:"number"`  // rises with each session that the daemon opens
	AgeMS         int64  `json:"age_ms"`  // since it was opened
	IdleMS        int64  `json:"idle_ms"` // since the last poll; 0 while one is there
	Polling       bool   `json:"polling"` // a poll is parked or being answered
	Subscriptions int    `json:"subscriptions"`
	Queued        int    `json:"queued"`          // frames waiting for a poll
	Unacked       int    `json:"unacked"`         // frames sent and not acked
	Lag           uint64 `json:"lag"`             // of all subscriptions together
	Worst         string `json:"worst,omitempty"` // the topic that lags most; none if nothing lags
	Why           string `json:"why,omitempty"`   // what a session that lags waits for
}
