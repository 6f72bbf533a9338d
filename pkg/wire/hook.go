package wire

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
