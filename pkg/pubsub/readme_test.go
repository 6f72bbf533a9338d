package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The examples of README.md compile: each is a part of this file.
func TestTheExamplesOfTheReadmeCompile(t *testing.T) {
	source, err := os.ReadFile("readme_test.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, blocks)
	compiled := dedented(string(source))
	for _, block := range blocks {
		if strings.HasPrefix(block[1], "import") {
			continue
		}
		require.Contains(t, compiled, dedented(block[1]))
	}
}

func dedented(code string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")
}

func connectAndUse(ctx context.Context) error {
	client, err := pubsub.New("https://push.example.com")
	if err != nil {
		return err
	}
	defer client.Close()
	return errors.Join(publish(ctx, client), subscribe(ctx, client))
}

func publish(ctx context.Context, client *pubsub.Client) error {
	published, err := client.PublishJSON(ctx, "orders", map[string]int{"n": 17}, pubsub.WithIdempotencyKey("order-17"))
	if err != nil {
		return err
	}
	fmt.Println(published.Position)
	return nil
}

func subscribe(ctx context.Context, client *pubsub.Client) error {
	sub, err := client.Subscribe(ctx, []wire.Start{pubsub.FromOldest("orders"), pubsub.FromNow("prices.*")})
	if err != nil {
		return err
	}
	defer sub.Close()
	for item, err := range sub.All(ctx) {
		if err != nil {
			return err
		}
		if item.Gap != nil {
			fmt.Println("lost:", item.Gap.Reason, item.Gap.After, item.Gap.Position)
			continue
		}
		fmt.Println(item.Message.Position, string(item.Message.Data))
	}
	return nil
}

func history(ctx context.Context, client *pubsub.Client) (*pubsub.Subscription, error) {
	page, err := client.History(ctx, "orders", wire.Position{}, 50) // the newest 50
	if err != nil {
		return nil, err
	}
	if page.More {
		older, err := client.History(ctx, "orders", page.Before, 50)
		if err != nil {
			return nil, err
		}
		fmt.Println(older.Items, page.Items)
	}
	live, err := client.Subscribe(ctx, []wire.Start{page.Next})
	return live, err
}

func presence(ctx context.Context, client *pubsub.Client) error {
	presence, err := client.Presence(ctx, "chat.42")
	if err != nil {
		return err
	}
	defer presence.Close()
	for change, err := range presence.All(ctx) {
		if err != nil {
			return err
		}
		fmt.Println(change.Event, change.Member.Key, presence.Counts().Count)
		for _, member := range presence.Members() {
			fmt.Println(member.Subject, string(member.Claims))
		}
	}
	return nil
}

func resume(ctx context.Context, client *pubsub.Client, sub *pubsub.Subscription) (*pubsub.Subscription, error) {
	stored := sub.Positions()
	var starts []wire.Start
	for _, position := range stored {
		starts = append(starts, pubsub.FromPosition(position))
	}
	resumed, err := client.Subscribe(ctx, starts)
	return resumed, err
}

func connectWithTokens(fetchToken func(context.Context) (string, error)) (*pubsub.Client, error) {
	client, err := pubsub.New("https://push.example.com", pubsub.WithTokenSource(fetchToken))
	return client, err
}

func explain(err error) {
	if errors.Is(err, &wire.Problem{Code: wire.CodeMessageTooLarge}) {
		fmt.Println("send less")
	}
}

// The linter must not report them as unused.
var _ = []any{connectAndUse, history, presence, resume, connectWithTokens, explain}
