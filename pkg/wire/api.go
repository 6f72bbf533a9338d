package wire

import (
	"encoding/json"
)

// The bodies of requests and answers under /v1 that are not frames. The daemon
// refuses a request with a field it does not know; clients ignore unknown
// fields of answers.

// OpenRequest is the body of POST /v1/sessions.
type OpenRequest struct {
	Topics []Start `json:"topics"`
	Ack    *bool   `json:"ack,omitempty"` // default true; false: sent frames count as acknowledged

	// Client is the client's id, the same with which it publishes (see CheckClient). With
	// Echo false, the session does not get messages published with this id. Echo is true by
	// default.
	Client *string `json:"client,omitempty"`
	Echo   *bool   `json:"echo,omitempty"`
}

// SessionOpened answers POST /v1/sessions. Positions has one entry for each requested
// topic or pattern, in that order: the given position, or the assigned one. One entry
// follows for each topic that a pattern matches.
type SessionOpened struct {
	Session   string     `json:"session"`
	Ack       bool       `json:"ack"`
	Positions []Position `json:"positions"`
	ExpiresMS int64      `json:"expires_ms,omitempty"` // milliseconds until the credentials expire; 0: they do not
	Limits    Limits     `json:"limits"`

	Unfollowed int `json:"unfollowed,omitempty"` // as in Hello
}

// ChangeRequest is the body of PATCH /v1/sessions/{id}. Removals come first, so a topic in
// both lists moves to a new start.
type ChangeRequest struct {
	Add    []Start  `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// SessionChanged answers a ChangeRequest: the position of each topic or pattern in Add, in
// that order, then of each topic that a new pattern matches.
type SessionChanged struct {
	Positions []Position `json:"positions"`
	ExpiresMS int64      `json:"expires_ms,omitempty"` // as in SessionOpened

	Unfollowed int `json:"unfollowed,omitempty"` // as in Hello
}

// PublishItem is one message in the body of POST /v1/messages: Data, any JSON value,
// or Type with either Text or Base64.
type PublishItem struct {
	Topic  string          `json:"topic"`
	Data   json.RawMessage `json:"data,omitempty"`
	Type   string          `json:"type,omitempty"`
	Text   *string         `json:"text,omitempty"`
	Base64 *[]byte         `json:"base64,omitempty"`
	Key    string          `json:"key,omitempty"`
	TTL    *uint64         `json:"ttl,omitempty"` // whole seconds, from 1 to a year
	Client *string         `json:"client,omitempty"`
	ID     *string         `json:"id,omitempty"` // the idempotency key; see CheckID

	CBOR []byte `json:"-"` // instead of Data, if the message came in CBOR; not checked
}

// PublishResult is the result of one message of POST /v1/messages: its position, or a
// problem if it was not published.
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
	Acked         uint64              `json:"acked"`   // frames that the client acknowledged
	Queued        int                 `json:"queued"`  // frames that wait for a poll
	Polling       bool                `json:"polling"` // a poll waits or is being answered
	IdleMS        int64               `json:"idle_ms"` // milliseconds since the last poll
	Patterns      []string            `json:"patterns,omitempty"`
	Unfollowed    int                 `json:"unfollowed,omitempty"` // as in Hello
	Subscriptions []SubscriptionState `json:"subscriptions"`
}

// SubscriptionState is one topic of a session.
type SubscriptionState struct {
	Topic  string   `json:"topic"`
	Sent   Position `json:"sent"`   // of the last frame sent
	Acked  Position `json:"acked"`  // of the last acknowledged frame; resume here
	Lag    uint64   `json:"lag"`    // the topic's newest offset minus the sent one
	Behind bool     `json:"behind"` // catching up from history
}

// PresenceCounts counts who is on a topic.
type PresenceCounts struct {
	Count     int  `json:"count"`     // members
	Anonymous int  `json:"anonymous"` // subscriptions without a subject and a client's name
	Exact     bool `json:"exact"`     // the daemon sends each change; otherwise only counts
}

// A Member is on a topic: a subject and the name of a client.
type Member struct {
	Subject string          `json:"subject,omitempty"`
	Client  string          `json:"client,omitempty"`
	Claims  json.RawMessage `json:"claims,omitempty"` // public claims of the token
	Since   int64           `json:"since,omitempty"`  // Unix milliseconds
}

// A PresenceList answers GET /v1/topics/{topic}/presence: who is on the topic.
type PresenceList struct {
	Topic    string   `json:"topic"`
	Position Position `json:"position"` // of the presence topic: later changes follow it
	PresenceCounts
	Members []ListedMember `json:"members"` // all of them, or some if the list is not exact
}

// A ListedMember is a member in a list.
type ListedMember struct {
	Key string `json:"key"` // of the messages about the member
	Member
}

// A PresenceEvent is the payload of a message of a presence topic.
type PresenceEvent struct {
	Event string `json:"event"`
	Member
	*PresenceCounts
}

// The events.
const (
	PresenceJoin  = "join"  // of a member
	PresenceLeave = "leave" // of a member
	PresenceCount = "count" // the counts have changed
)

// TopicState answers GET /v1/topics/{topic}.
type TopicState struct {
	Topic         string   `json:"topic"`
	Position      Position `json:"position"`       // of the newest message
	Oldest        Position `json:"oldest"`         // just before the oldest message in history
	Messages      int      `json:"messages"`       // in history
	Bytes         int      `json:"bytes"`          // in history
	Subscriptions int      `json:"subscriptions"`  // of sessions and of polls in progress
	Time          int64    `json:"time,omitempty"` // of the newest message, in Unix milliseconds; omitted if history is empty
}

// TopicList answers GET /v1/topics?after=&limit=: topics in byte order of their names.
// Next, if not empty, is the after parameter of the next batch.
type TopicList struct {
	Topics []TopicState `json:"topics"`
	Next   string       `json:"next,omitempty"`
}

// A Command is a request on a WebSocket or TCP connection. It does one thing: subscribe
// (with unsubscribe, which comes first), publish, ack, ping or auth. The daemon refuses
// unknown fields.
type Command struct {
	Ref         *uint64      `json:"ref,omitempty"` // repeated in the reply; without it only a failure has a reply
	Subscribe   []Start      `json:"subscribe,omitempty"`
	Unsubscribe []string     `json:"unsubscribe,omitempty"`
	Publish     *PublishItem `json:"publish,omitempty"`
	Ack         *uint64      `json:"ack,omitempty"` // frames of the session that the client has received
	Ping        bool         `json:"ping,omitempty"`
	Auth        string       `json:"auth,omitempty"` // a new token of the same principal; never log it
}

// A ConnectRequest opens a WebSocket or TCP connection: with its own session, which may
// begin without topics, or with an open session. On a WebSocket it is the query, on TCP the
// first item.
type ConnectRequest struct {
	Topics []Start `json:"topics,omitempty"`
	Client *string `json:"client,omitempty"` // as in OpenRequest
	Echo   *bool   `json:"echo,omitempty"`

	Session *string `json:"session,omitempty"` // replaces all other fields but auth; not empty
	Ack     *uint64 `json:"ack,omitempty"`     // frames of it that the client has received; required if the session acks

	Auth *string `json:"auth,omitempty"` // a token, on TCP; not empty; never log it
}

// The types of requests to applications.
const (
	HookPublish   = "publish"   // before a message is published
	HookAuthorize = "authorize" // before a client subscribes to topics, also by opening a session
	HookEvents    = "events"    // after sessions and topics have changed
)

// A HookAnswer is the answer of an application. Without Message and Refuse, the application
// agrees.
type HookAnswer struct {
	// Message replaces payload, type, key and ttl; what it omits, the message does not
	// have. Topic, client and id stay; Message may omit or repeat them. Only for
	// HookPublish.
	Message *PublishItem `json:"message,omitempty"`

	Refuse *HookRefusal `json:"refuse,omitempty"`
}

// A HookRefusal tells the client why the application refuses.
type HookRefusal struct {
	Detail string `json:"detail,omitempty"`
}

// A SubjectRequest is the body of POST /v1/subjects, of an application: it ends the sessions of a
// principal, or forbids it topics.
type SubjectRequest struct {
	Subject string   `json:"subject"`
	End     bool     `json:"end,omitempty"`      // all sessions, and connections without a session
	Forbid  []string `json:"forbid,omitzero"`    // topics and patterns, in place of those of earlier requests; empty but not nil: none any more
	UntilMS int64    `json:"until_ms,omitempty"` // when the prohibition ends, in Unix milliseconds; with Forbid, unless it is empty
	Reason  string   `json:"reason,omitempty"`   // for people: the clients get it as detail
}

// A SubjectResult answers POST /v1/subjects.
type SubjectResult struct {
	Sessions int `json:"sessions"` // sessions, stateless polls and connections that ended, or had a subscription that ended
}

// The answers of the admin listener, for operators. They are not part of /v1.

// SessionList answers GET /sessions?limit=&sort= on the admin listener: the first open
// sessions and connections in the order of sort, and the numbers of all.
type SessionList struct {
	Open        int             `json:"open"`        // sessions, listed or not
	Connections int             `json:"connections"` // connections without a session, listed or not
	Stateless   int             `json:"stateless"`   // Connections and stateless polls in progress; polls are never listed
	Sessions    []ListedSession `json:"sessions"`
}

// ListedSession is what an operator may know about a session. It has a number instead of
// the id, because whoever has the id can receive the session's messages. A part or a hash of
// the id would identify the session, too. Numbers rise in the order of opening.
//
// The list also has each connection without a session, with its transport and its client.
type ListedSession struct {
	Number        uint64 `json:"number"`  // rises with each session that the daemon opens
	AgeMS         int64  `json:"age_ms"`  // milliseconds since it was opened
	IdleMS        int64  `json:"idle_ms"` // milliseconds since the last poll; 0 during a poll
	Polling       bool   `json:"polling"` // a poll waits or is being answered
	Subscriptions int    `json:"subscriptions"`
	Queued        int    `json:"queued"`          // frames that wait for a poll
	Unacked       int    `json:"unacked"`         // frames sent and not acknowledged
	Lag           uint64 `json:"lag"`             // of all subscriptions together
	Worst         string `json:"worst,omitempty"` // the topic that lags most; omitted if none lags
	Why           string `json:"why,omitempty"`   // what a lagging session waits for

	// Of a connection without a session; omitted for a session.
	Transport string `json:"transport,omitempty"` // websocket, tcp, sse or stream
	Address   string `json:"address,omitempty"`   // that the client is counted for; of IPv6, the network
	Agent     string `json:"agent,omitempty"`     // the beginning of the client's User-Agent, which may say anything
}

// A RevokeRequest is the body of POST /revocations on the admin listener. It has one field.
type RevokeRequest struct {
	Subject string `json:"subject,omitempty"`  // revokes all tokens of the subject that were issued until now
	TokenID string `json:"token_id,omitempty"` // revokes the token with this jti
	Session uint64 `json:"session,omitempty"`  // ends the session of this number; its client may open another
}

// RevokeResult answers POST /revocations.
type RevokeResult struct {
	Ended int `json:"ended"` // sessions, stateless polls and connections that ended
}
