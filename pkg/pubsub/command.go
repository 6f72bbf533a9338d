package pubsub

import (
	"encoding/json"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A command is what a client says over a socket.
type command struct {
	Subscribe   []wire.Start `json:"subscribe,omitempty"`
	Unsubscribe []string     `json:"unsubscribe,omitempty"`
	Ref         uint64       `json:"ref"`
}

// encode writes what is sent to the daemon.
func (f Format) encode(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil || f == JSON {
		return text, err
	}
	return cbor.AppendFromJSON(nil, text), nil
}
