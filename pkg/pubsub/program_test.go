package pubsub_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The program in README is the body of follow, which the compiler checks.
func TestTheProgramInTheREADMECompiles(t *testing.T) {
	_ = follow
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, program, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found)
	program, _, _ = strings.Cut(program, "```")

	source, err := os.ReadFile("program_test.go")
	require.NoError(t, err)
	_, body, _ := strings.Cut(string(source), "\nfunc follow(")
	_, body, _ = strings.Cut(body, "\n")
	body, _, _ = strings.Cut(body, "\treturn nil\n}")
	require.Equal(t, program, strings.TrimPrefix(strings.ReplaceAll("\n"+body, "\n\t", "\n"), "\n"))
	require.Equal(t, 12, strings.Count(program, "\n"))
}

func follow(ctx context.Context, show func(*wire.Message, *wire.Gap, error)) error {
	client, err := pubsub.New("http://127.0.0.1:8080")
	if err != nil {
		return err
	}
	sub, err := client.Subscribe(ctx, []wire.Start{pubsub.Oldest("prices.acme")})
	if err != nil {
		return err
	}
	defer sub.Close()
	for item, err := range sub.All(ctx) {
		show(item.Message, item.Gap, err)
	}
	return nil
}
