package app

import (
	"fmt"
	"iter"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// list returns a page of topics.
func (a *App) list(t *testing.T, after string) (page wire.TopicList, err error) {
	query := url.Values{"limit": {"1000"}}
	if after != "" {
		query.Set("after", after)
	}
	err = a.Topics(t.Context(), Caller{}, request.PageOf(query.Encode()), func(topics iter.Seq[wire.TopicState], next *string, _ func()) error {
		for topic := range topics {
			page.Topics = append(page.Topics, topic)
		}
		page.Next = *next
		return nil
	})
	return page, err
}

// A client may see one of many topics. No page names another, and each page examines a
// bounded number.
func TestAPageDoesNotNameHiddenTopics(t *testing.T) {
	newsroom := func() *App {
		a := newApp(t, func(c *Config) { c.Authority = permit(t, "ann", `[{"topics":["*.open"],"allow":["subscribe"]}]`) })
		for i := range 25_000 {
			_, err := a.cfg.Broker.Join(wire.Start{Topic: fmt.Sprintf("secret%05d.closed", i)}, nil, true)
			require.NoError(t, err)
		}
		_, err := a.cfg.Broker.Join(wire.Start{Topic: "z.open"}, nil, true)
		require.NoError(t, err)
		return a
	}
	a, pages, after := newsroom(), 0, ""
	for {
		page, err := a.list(t, after)
		require.NoError(t, err)
		pages++
		if after = page.Next; after == "" {
			require.Len(t, page.Topics, 1)
			require.Equal(t, "z.open", page.Topics[0].Topic)
			break
		}
		require.Empty(t, page.Topics)
		require.Regexp(t, `^~[A-Za-z0-9_-]{40,}$`, after, "nobody can read it")
	}
	require.Equal(t, 3, pages)

	page, err := a.list(t, "")
	require.NoError(t, err)
	other := newApp(t)
	for _, bad := range []string{"~", "~x", page.Next[:len(page.Next)-1], page.Next + "AAAA"} {
		_, err = a.list(t, bad)
		require.ErrorContains(t, err, "omit after", bad)
	}
	_, err = other.list(t, page.Next)
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeInvalidRequest}, "the key is the daemon's own")
}

// Callers without rights get an empty list, and those with few see what they may.
func TestAListHasWhatTheRightsName(t *testing.T) {
	for rights, want := range map[string][]string{
		"without authorisation": {"_presence.chat.a", "chat.a", "chat.b.c", "news"},
		`[]`:                    nil,
		`[{"topics":["chat.>"],"allow":["publish","history"]}]`:                             nil,
		`[{"topics":["chat.a"],"allow":["subscribe"]}]`:                                     {"chat.a"},
		`[{"topics":["chat.>"],"allow":["subscribe"]}]`:                                     {"chat.a", "chat.b.c"},
		`[{"topics":["chat.*"],"allow":["subscribe"]}]`:                                     {"chat.a"},
		`[{"topics":["chat.*"],"allow":["presence"]}]`:                                      {"_presence.chat.a"},
		`[{"topics":["_presence.>"],"allow":["subscribe"]}]`:                                nil,
		`[{"topics":[">"],"allow":["subscribe"]}]`:                                          {"chat.a", "chat.b.c", "news"},
		`[{"topics":[">"],"allow":["subscribe","presence"]}]`:                               {"_presence.chat.a", "chat.a", "chat.b.c", "news"},
		`[{"topics":["news","*.b.c"],"allow":["subscribe"]}]`:                               {"chat.b.c", "news"},
		`[{"topics":["chat.a"],"allow":["subscribe"]},{"topics":[">"],"allow":["delete"]}]`: {"chat.a"},
	} {
		a := newApp(t, func(c *Config) {
			if rights != "without authorisation" {
				c.Authority = permit(t, "ann", rights)
			}
		})
		for _, name := range []string{"news", "chat.b.c", "chat.a", "_presence.chat.a"} {
			_, err := a.cfg.Broker.Join(wire.Start{Topic: name}, nil, true)
			require.NoError(t, err)
		}
		page, err := a.list(t, "")
		require.NoError(t, err)
		var got []string
		for _, topic := range page.Topics {
			got = append(got, topic.Topic)
		}
		require.Equal(t, want, got, rights)
		require.Empty(t, page.Next)
	}
}
