package httpapi

import (
	"net/url"
	"slices"

	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// exceptOf returns the client whose messages a subscriber is not sent: its own, if
// it does not want them back.
func exceptOf(client string, echo bool) (string, error) {
	if client != "" {
		if err := checkClient(client); err != nil {
			return "", err
		}
	}
	switch {
	case echo:
		return "", nil
	case client == "":
		return "", wire.NewProblem(wire.CodeInvalidRequest, "say client, the id that you publish with", "echo is false, but whose messages are your own is not said")
	}
	return client, nil
}

// exceptOfQuery is exceptOf for a stateless poll.
func exceptOfQuery(q url.Values) (string, error) {
	client, err := one(q, "client")
	if err != nil {
		return "", err
	}
	echo, err := truth(q, "echo", true)
	if err != nil {
		return "", err
	}
	return exceptOf(client, echo)
}

// paceTopics gives each topic of a stateless poll the max_rate in the query, if
// there is one. Only a stream lasts long enough for it.
func paceTopics(q url.Values, topics []wire.Start, mode transport.Mode) error {
	rate, err := one(q, "max_rate")
	if err != nil {
		return err
	}
	if rate != "" {
		every, err := wire.ParseRate(rate)
		if err != nil {
			return unreadable(err)
		}
		for i := range topics {
			topics[i].Every = every
		}
	}
	if mode != transport.Stream && slices.ContainsFunc(topics, func(s wire.Start) bool { return s.Every > 0 }) {
		return wire.NewProblem(wire.CodeInvalidRequest, "say mode=stream, or open a session", "max_rate has no meaning for a poll that ends")
	}
	return nil
}
