package wire

import (
	"encoding/json"
)

// The bodies of requests and answers under /v1 that are not frames. The daemon
// refuses a request with a member it does not know; clients ignore unknown
// members of answers.

// OpenRequest is the body of POST /v1/sessions.
type OpenRequest struct {
	Topics []Start `json:"topics"`
	Ack    *bool   `json:"ack,omitempty"` // default true; false trusts the connection

	// Client is the subscriber's own id, the one that it publishes with. With Echo
	// false it is not sent what it published itself. Echo's default is true.
	Client string `json:"client,omitempty"`
	Echo   *bool  `json:"echo,omitempty"`
}

// SessionOpened answers POST /v1/sessions. Positions has one entry for each
// topic or pattern asked for, in that order: the position as given, or the one
// assigned; and then one for each topic that a pattern stands for.
type SessionOpened struct {
	Session   string     `json:"session"`
	Ack       bool       `json:"ack"`
	Positions []Position `json:"positions"`
	Limits    Limits     `json:"limits"`
}

// ChangeRequest is the body of PATCH /v1/sessions/{id}. Removals come first, so
// naming a topic in both moves it to a new start.
type ChangeRequest struct {
	Add    []Start  `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// SessionChanged answers a ChangeRequest: the position of each topic or pattern in
// Add, in that order, and then of each topic that a new pattern stands for.
type SessionChanged struct {
	Positions []Position `json:"positions"`
}

// PublishItem is one message in the body of POST /v1/messages: Data, any JSON value,
// or Type with either Text or Base64. In CBOR it is what ParsePublishItem reads.
type PublishItem struct {
	Topic  string          `json:"topic"`
	Data   json.RawMessage `json:"data,omitempty"`
	Type   string          `json:"type,omitempty"`
	Text   *string         `json:"text,omitempty"`
	Base64 *[]byte         `json:"base64,omitempty"`
	Key    string          `json:"key,omitempty"`
	TTL    *uint64         `json:"ttl,omitempty"` // whole seconds
	Client *string         `json:"client,omitempty"`
	ID     *string         `json:"id,omitempty"` // the idempotency key

	CBOR []byte `json:"-"` // in place of Data, if the message came in CBOR; not checked
}

// PublishResult is what became of one message of POST /v1/messages: where it was put
// or, if Problem is there, why it was not.
type PublishResult struct {
	*Published
	Problem *Problem `json:"problem,omitempty"`
}

// Published answers POST /v1/topics/{topic}/messages.
type Published struct {
	Position Position `json:"position"`
	Time     int64    `json:"time"` // Unix milliseconds
}

// SessionState answers GET /v1/sessions/{id}.
type SessionState struct {
	Session       string              `json:"session"`
	Ack           bool                `json:"ack"`
	Sent          uint64              `json:"sent"`    // frames sent
	Acked         uint64              `json:"acked"`   // frames the client has said it has
	Queued        int                 `json:"queued"`  // frames waiting for a poll
	Polling       bool                `json:"polling"` // a poll is parked or being answered
	IdleMS        int64               `json:"idle_ms"` // since the last poll
	Patterns      []string            `json:"patterns,omitempty"`
	Subscriptions []SubscriptionState `json:"subscriptions"`
}

// SubscriptionState is one topic of a session.
type SubscriptionState struct {
	Topic  string   `json:"topic"`
	Sent   Position `json:"sent"`   // of the last frame sent
	Acked  Position `json:"acked"`  // of the last frame acked; resume here
	Lag    uint64   `json:"lag"`    // the topic's newest offset less the sent one
	Behind bool     `json:"behind"` // catching up from history
}

// TopicState answers GET /v1/topics/{topic}.
type TopicState struct {
	Topic         string   `json:"topic"`
	Position      Position `json:"position"`       // of the newest message
	Oldest        Position `json:"oldest"`         // just before the oldest message held
	Messages      int      `json:"messages"`       // held
	Bytes         int      `json:"bytes"`          // held
	Subscriptions int      `json:"subscriptions"`  // of sessions and of polls in progress
	Time          int64    `json:"time,omitempty"` // of the newest message, in Unix milliseconds; none if none is held
}

// TopicList answers GET /v1/topics?after=&limit=: topics in byte order of their
// names. Next, if not empty, is the after of the following page.
type TopicList struct {
	Topics []TopicState `json:"topics"`
	Next   string       `json:"next,omitempty"`
}

// A Command is what a client asks for on a connection that goes both ways: one of
// subscribing (with unsubscribing, which comes first), publishing, acking and pinging.
// The daemon refuses members that it does not know.
type Command struct {
	Ref         *uint64      `json:"ref,omitempty"` // what the reply is called; without it there is one only if something is wrong
	Subscribe   []Start      `json:"subscribe,omitempty"`
	Unsubscribe []string     `json:"unsubscribe,omitempty"`
	Publish     *PublishItem `json:"publish,omitempty"`
	Ack         *uint64      `json:"ack,omitempty"` // frames of the session that the client has
	Ping        bool         `json:"ping,omitempty"`
}

// A ConnectRequest says what a connection that goes both ways carries: a session of
// its own, which may begin without topics, or one that is open. On a WebSocket it is
// the query, on a bare connection the first item.
type ConnectRequest struct {
	Topics []Start `json:"topics,omitempty"`
	Client string  `json:"client,omitempty"` // as OpenRequest
	Echo   *bool   `json:"echo,omitempty"`

	Session string  `json:"session,omitempty"` // in place of all the others
	Ack     *uint64 `json:"ack,omitempty"`     // frames of it that the client has; required if it acks
}

// HookPublish is the type of what an application is asked before a message is
// published.
const HookPublish = "publish"

// A HookAnswer is what an application answers. Without Message and Refuse the message
// goes as it is.
type HookAnswer struct {
	// Message takes the message's place: its payload, type, key and ttl are as said
	// here, and what is left out it has not. Topic, client and id stay, and may be
	// left out or repeated.
	Message *PublishItem `json:"message,omitempty"`

	Refuse *HookRefusal `json:"refuse,omitempty"`
}

// A HookRefusal is why the message is not published, for its publisher.
type HookRefusal struct {
	Detail string `json:"detail,omitempty"`
}

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
