package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// startDaemon stands for a running pubsubd; its address is as http://127.0.0.1:8080.
func startDaemon() (address string, stop func()) {
	server := httptest.NewServer(pubsub.NewFake())
	return server.URL, server.Close
}

func Example() {
	address, stop := startDaemon()
	defer stop()
	ctx := context.Background()

	client, err := pubsub.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	sub, err := client.Subscribe(ctx, []wire.Start{pubsub.FromNow("prices.acme")})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()

	if _, err := client.PublishJSON(ctx, "prices.acme", map[string]float64{"bid": 41.5}); err != nil {
		log.Fatal(err)
	}
	if _, err := client.Publish(ctx, "prices.acme", "text/plain", []byte("closed"), pubsub.WithTTL(time.Minute)); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		item, err := sub.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if item.Gap != nil {
			fmt.Println(item.Gap)
			continue
		}
		fmt.Println(item.Message.Position, string(item.Message.Data))
	}
	// Output:
	// prices.acme@k3:1 {"bid":41.5}
	// prices.acme@k3:2 closed
}

// A program that stores the positions with its own state goes on after a restart
// where it was.
func ExampleSubscription_Positions() {
	address, stop := startDaemon()
	defer stop()
	ctx := context.Background()
	client, err := pubsub.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for n := range 3 {
		if _, err := client.PublishJSON(ctx, "jobs", n); err != nil {
			log.Fatal(err)
		}
	}

	first, err := client.Subscribe(ctx, []wire.Start{pubsub.FromOldest("jobs")})
	if err != nil {
		log.Fatal(err)
	}
	item, err := first.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("before:", item.Message.Position)
	stored := first.Positions() // with what was made of the item
	first.Close()

	var starts []wire.Start
	for _, position := range stored {
		starts = append(starts, pubsub.FromPosition(position))
	}
	second, err := client.Subscribe(ctx, starts)
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()
	for item, err := range second.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("after:", item.Message.Position)
		if item.Message.Position.Offset == 3 {
			break
		}
	}
	// Output:
	// before: jobs@k3:1
	// after: jobs@k3:2
	// after: jobs@k3:3
}

func ExampleSubscription_Change() {
	address, stop := startDaemon()
	defer stop()
	ctx := context.Background()
	client, err := pubsub.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	sub, err := client.Subscribe(ctx, []wire.Start{pubsub.FromNow("chat.lobby")}, pubsub.WithMode(pubsub.Stream))
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()

	positions, err := sub.Change(ctx, []wire.Start{pubsub.FromNow("chat.room-7")}, []string{"chat.lobby"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(positions[0])
	// Output: chat.room-7@k3:0
}

// What the daemon refuses comes as a *wire.Problem, with a code for programs.
func ExampleClient_Publish() {
	address, stop := startDaemon()
	defer stop()
	client, err := pubsub.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	published, err := client.Publish(context.Background(), "prices.acme", "text/plain", []byte("41.5"), pubsub.WithKey("acme"))
	if errors.Is(err, &wire.Problem{Code: wire.CodeMessageTooLarge}) {
		fmt.Println("shorten it")
	}
	fmt.Println(published.Position, err)
	// Output: prices.acme@k3:1 <nil>
}

// What may be published again has a key of its own; what is wrong with one message is
// its own result.
func ExampleClient_PublishMany() {
	address, stop := startDaemon()
	defer stop()
	client, err := pubsub.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	results, err := client.PublishMany(context.Background(), []pubsub.Publication{
		{Topic: "orders", Body: []byte(`{"n":17}`), Options: []pubsub.PublishOption{pubsub.WithIdempotencyKey("order-17")}},
		{Topic: "orders", Body: []byte(`{"n":17}`), Options: []pubsub.PublishOption{pubsub.WithIdempotencyKey("order-17")}},
		{Topic: "refused", Type: "text/plain", Body: []byte("not for you"), Options: []pubsub.PublishOption{pubsub.WithIdempotencyKey("18")}},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range results {
		if r.Problem != nil {
			fmt.Println("not published:", r.Problem.Code)
			continue
		}
		fmt.Println(r.Position)
	}
	// Output:
	// orders@k3:1
	// orders@k3:1
	// not published: forbidden
}
