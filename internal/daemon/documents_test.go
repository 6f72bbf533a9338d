package daemon

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The examples in Go of the documents in pkg are parts of this file, so they compile, and the tests
// below run them. Here, address stands for the address in the document.
func TestTheGoExamplesOfTheDocumentsAreInThisFile(t *testing.T) {
	t.Parallel()
	indent := regexp.MustCompile(`(?m)^\t+`)
	source, err := os.ReadFile("documents_test.go")
	require.NoError(t, err)
	compiled := strings.ReplaceAll(indent.ReplaceAllString(string(source), ""), "pubsub.New(address)", `pubsub.New("http://127.0.0.1:8080")`)
	for document, lines := range map[string]int{"../../pkg/README.md": 12, "../../pkg/COMPARED.md": 10} {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, blocks, document)
		for _, block := range blocks {
			require.Contains(t, compiled, indent.ReplaceAllString(block[1], ""))
			require.LessOrEqual(t, strings.Count(block[1], "\n"), lines, "an example of %s is too long", document)
		}
	}
}

// A reader runs the program of the concepts after the commands before it.
func TestTheGoExampleOfTheConceptsShowsMessages(t *testing.T) {
	t.Parallel()
	d := start(t, nil)
	address := "http://" + d.PublicAddr()
	client, err := pubsub.New(address)
	require.NoError(t, err)
	defer client.Close()
	_, err = client.PublishJSON(t.Context(), "chat.42", "hi")
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var shown []string
	err = followChat(ctx, address, func(m *wire.Message, gap *wire.Gap, err error) {
		require.Nil(t, gap)
		if m == nil {
			require.ErrorIs(t, err, context.Canceled)
			return
		}
		shown = append(shown, string(m.Data))
		cancel()
	})
	require.NoError(t, err)
	require.Equal(t, []string{`"hi"`}, shown)
}

func TestTheGoExampleForNATSReceivesWhatItPublishes(t *testing.T) {
	t.Parallel()
	client, err := pubsub.New("http://" + start(t, nil).PublicAddr())
	require.NoError(t, err)
	defer client.Close()
	var shown []string
	err = watchPrices(t.Context(), client, func(m *wire.Message, _ *wire.Gap, err error) {
		require.NoError(t, err)
		shown = append(shown, string(m.Data))
	})
	require.NoError(t, err)
	require.Equal(t, []string{"41.5"}, shown)
}

func followChat(ctx context.Context, address string, show func(*wire.Message, *wire.Gap, error)) error {
	client, err := pubsub.New(address)
	if err != nil {
		return err
	}
	sub, err := client.Subscribe(ctx, []wire.Start{pubsub.FromOldest("chat.42")})
	if err != nil {
		return err
	}
	defer sub.Close()
	for item, err := range sub.All(ctx) {
		show(item.Message, item.Gap, err)
	}
	return nil
}

func watchPrices(ctx context.Context, client *pubsub.Client, show func(*wire.Message, *wire.Gap, error)) error {
	sub, err := client.Subscribe(ctx, []wire.Start{pubsub.FromNow("prices.>")}) // was: nc.Subscribe
	if err != nil {
		return err
	}
	_, err = client.PublishJSON(ctx, "prices.acme", 41.5, pubsub.WithIdempotencyKey("tick-1")) // was: js.Publish
	if err != nil {
		return err
	}
	item, err := sub.Next(ctx)
	show(item.Message, item.Gap, err)
	return nil
}
