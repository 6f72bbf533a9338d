// Package pubsub is the Go client of pubsubd: it publishes messages, and
// subscribes to topics, losing nothing silently. Messages come over a WebSocket if
// that gets through, else a stream or long polls; see WithTransport.
//
// A Subscription goes on by position over every broken answer, lost connection
// and restarted daemon. What the daemon cannot give any more it announces, and
// Next returns that as a gap; there is no other loss. Whoever stores
// Subscription.Positions with its own state resumes with After, across its own
// restarts too.
//
//	c, err := pubsub.New("http://127.0.0.1:8080")
//	s, err := c.Subscribe(ctx, []wire.Start{pubsub.Oldest("prices.acme")})
//	defer s.Close()
//	published, err := c.PublishJSON(ctx, "prices.acme", 17)
//	item, err := s.Next(ctx) // item.Message, or item.Gap: what was lost, and why
//
// WithToken, or WithTokenSource for tokens that expire, identifies the client. A subscription
// renews its token without a reconnect:
//
//	c, err := pubsub.New("https://push.example.com", pubsub.WithTokenSource(fetchToken))
//
// If the topic's rule has identity, Message.By is the verified subject of the publisher, and
// Message.Claims has public claims of the publisher's token.
//
// The words are those of the protocol (pkg/wire/PROTOCOL.md), and messages, gaps,
// positions and problems are the types of package wire.
//
// The client does not log, and does not publish twice (see Client.Publish, and
// WithIdempotencyKey for when an answer is lost). It publishes by HTTP, whatever
// messages come over. It deflates nothing.
package pubsub
