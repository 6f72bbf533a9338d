// Package pubsub is the Go client of pubsubd. It publishes messages and subscribes to
// topics. Messages arrive over a WebSocket, a stream or long polls, whichever works first;
// see WithTransport.
//
// A Subscription resumes by position after a broken answer, a lost connection or a restart
// of the daemon. Next returns lost messages as a gap; there is no other loss. To resume
// after a restart of your program, store Subscription.Positions with your own state and
// subscribe with FromPosition.
//
//	c, err := pubsub.New("http://127.0.0.1:8080")
//	s, err := c.Subscribe(ctx, []wire.Start{pubsub.FromOldest("prices.acme")})
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
// Client.Presence is a live list of who is on a topic, with their claims, and Client.History reads
// the messages of a topic backwards.
//
// The terms are those of the protocol (pkg/wire/PROTOCOL.md). Messages, gaps, positions and
// problems are types of package wire.
//
// The client does not log: WithRetryNotify and WithPublishRetryNotify tell your program why it
// waits. It does not publish a message twice; see Client.Publish, and WithIdempotencyKey for lost
// answers. It publishes over HTTP, whatever the transport of
// its subscriptions. It does not compress.
package pubsub
