package wire

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

// MaxRef is the largest reference of a command: what every JSON reader keeps exactly.
const MaxRef = 1<<53 - 1
