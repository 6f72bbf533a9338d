package daemon

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

var tokenSecret = []byte("0123456789abcdef0123456789ABCDEF")

// tokenFor returns a token of ann for all topics, which expires at a time.
func tokenFor(expires time.Time) string { return tokenOn(expires, ">") }

// tokenOn is tokenFor for some topics.
func tokenOn(expires time.Time, topics ...string) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: tokenSecret}, nil)
	if err != nil {
		panic(err)
	}
	issued := min(time.Now().UnixMilli(), expires.Add(-time.Second).UnixMilli())
	claims := map[string]any{
		"sub": "ann", "name": "<ann>", "iat": float64(issued) / 1000, "exp": float64(expires.UnixMilli()) / 1000,
		"pubsub": []any{map[string]any{"topics": topics, "allow": []string{"subscribe", "publish", "history"}}},
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		panic(err)
	}
	return token
}

// startWithTokens starts a daemon that takes tokens, and tells who published to id.>.
func startWithTokens(t *testing.T) *running {
	key := filepath.Join(t.TempDir(), "key.json")
	text := fmt.Sprintf(`{"kty":"oct","alg":"HS256","k":%q}`, base64.RawURLEncoding.EncodeToString(tokenSecret))
	require.NoError(t, os.WriteFile(key, []byte(text), 0o600))
	return start(t, func(c *config.Config) {
		c.Auth.Keys, c.Auth.PublicClaims = []string{key}, []string{"name"}
		c.Broker.Rules = []broker.Rule{{Name: "id", Pattern: "id.>", Identity: true}}
		c.Listen.TCP = "127.0.0.1:0"
	})
}

// A renewer is a subscription over one of the ways, with tokens of a source.
type renewer struct {
	way, topic     string
	expires        time.Time // of its first token
	asked, retries atomic.Int64
	client         *pubsub.Client
	public, tcp    *line
	*pubsub.Subscription
}

// passTo cuts the connections. New ones go to these addresses.
func (f *renewer) passTo(public, tcp string) {
	f.public.passTo(public)
	f.tcp.passTo(tcp)
}

// renewers subscribes over every way, except some. The first token of each expires after a
// time. later returns those that the source gives afterwards.
func (d *running) renewers(t *testing.T, lasts time.Duration, later func(f *renewer) (string, error), except ...string) (all []*renewer) {
	for way, options := range ways {
		if slices.Contains(except, way) {
			continue
		}
		f := &renewer{way: way, topic: fmt.Sprintf("id.%d", len(all)), expires: time.Now().Add(lasts), public: newLine(t), tcp: newLine(t)}
		f.passTo(d.PublicAddr(), d.TCPAddr())
		source := func(context.Context) (string, error) {
			if f.asked.Add(1) > 1 {
				return later(f)
			}
			return tokenFor(f.expires), nil
		}
		notify := func(err error, _ time.Duration) {
			t.Logf("%s: %v", way, err)
			f.retries.Add(1)
		}
		var err error
		f.client, err = pubsub.New("http://"+f.public.Addr().String(), pubsub.WithTCPAddr(f.tcp.Addr().String(), nil), pubsub.WithTokenSource(source), pubsub.WithMaxBackoff(50*time.Millisecond))
		require.NoError(t, err)
		t.Cleanup(f.client.Close)
		f.Subscription, err = f.client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow(f.topic)}, append(slices.Clone(options), pubsub.WithRetryNotify(notify))...)
		require.NoError(t, err, way)
		t.Cleanup(f.Close)
		all = append(all, f)
	}
	return all
}

// wantPublished publishes a message and wants it to arrive, with the identity of its
// publisher.
func (f *renewer) wantPublished(t *testing.T, data string) {
	t.Helper()
	f.publish(t, f.client, data)
	f.wantNext(t, data)
}

func (f *renewer) publish(t *testing.T, client *pubsub.Client, data string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), surely)
	defer cancel()
	_, err := client.PublishJSON(ctx, f.topic, data)
	require.NoError(t, err, f.way)
}

func (f *renewer) next(t *testing.T) pubsub.Item {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), surely)
	defer cancel()
	item, err := f.Next(ctx)
	require.NoError(t, err, f.way)
	return item
}

func (f *renewer) wantNext(t *testing.T, data string) {
	t.Helper()
	item := f.next(t)
	require.Nil(t, item.Gap, f.way)
	require.Equal(t, fmt.Sprintf("%q", data), string(item.Message.Data), f.way)
	require.Equal(t, "ann", item.Message.By, f.way)
	require.JSONEq(t, `{"name":"<ann>"}`, string(item.Message.Claims), f.way)
}

// publisherElsewhere is a client with a token that does not expire during the test.
func (d *running) publisherElsewhere(t *testing.T) *pubsub.Client {
	client, err := pubsub.New("http://"+d.PublicAddr(), pubsub.WithToken(tokenFor(time.Now().Add(time.Hour))))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// waitUntil waits until a time after the first tokens of all have expired.
func waitUntil(t *testing.T, all []*renewer, after time.Duration) {
	for _, f := range all {
		require.Eventually(t, func() bool { return time.Now().After(f.expires.Add(after)) }, surely, 10*time.Millisecond)
	}
}

// Before a token expires, the Go client renews it on its connection. Polls without a session
// have nothing to renew.
func TestTheGoClientRenewsItsTokenWithoutAReconnect(t *testing.T) {
	t.Parallel()
	d := startWithTokens(t)
	all := d.renewers(t, 8*time.Second, func(f *renewer) (string, error) { return tokenFor(f.expires.Add(time.Hour)), nil },
		"stateless stream", "server-sent events")
	for _, f := range all {
		f.wantPublished(t, "before")
	}
	waitUntil(t, all, 0)
	for _, f := range all {
		f.wantPublished(t, "after")
		require.EqualValues(t, 2, f.asked.Load(), "%s asks for one more token, before the first has expired", f.way)
		require.Zero(t, f.retries.Load(), f.way)
	}
}

// If no new token can be had in time, the client goes on once there is one, and loses nothing.
func TestTheGoClientGoesOnAfterItsTokenExpired(t *testing.T) {
	t.Parallel()
	d := startWithTokens(t)
	const away = 200 * time.Millisecond // so long the source fails after the token has expired
	all := d.renewers(t, 4*time.Second, func(f *renewer) (string, error) {
		if time.Now().Before(f.expires.Add(away)) {
			return "", errors.New("the source is away")
		}
		return tokenFor(f.expires.Add(time.Hour)), nil
	})
	for _, f := range all {
		f.wantPublished(t, "before")
	}
	waitUntil(t, all, 0)
	elsewhere := d.publisherElsewhere(t)
	for _, f := range all {
		f.publish(t, elsewhere, "meanwhile")
	}
	waitUntil(t, all, away)
	for _, f := range all {
		f.wantNext(t, "meanwhile")
		f.wantPublished(t, "after")
		require.Greater(t, f.asked.Load(), int64(1), f.way)
	}
}

// A token that cannot be renewed ends the subscription with what the daemon said. The client
// does not ask again and again.
func TestTheGoClientEndsWhenItsTokenIsRefusedAgain(t *testing.T) {
	t.Parallel()
	d := startWithTokens(t)
	all := d.renewers(t, 2*time.Second, func(f *renewer) (string, error) { return tokenFor(f.expires), nil })
	for _, f := range all {
		ctx, cancel := context.WithTimeout(t.Context(), surely)
		_, err := f.Next(ctx)
		cancel()
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeTokenExpired}, f.way)
		require.LessOrEqual(t, f.asked.Load(), int64(6), f.way)
	}
}

// The new token has fewer rights. The topics that it does not permit end with a gap, forbidden, and
// the others resume where they were. The subscription never asks for the former again.
func TestTheGoClientGoesOnWithWhatANewTokenPermits(t *testing.T) {
	t.Parallel()
	d := startWithTokens(t)
	all := d.renewers(t, 2*time.Second, func(f *renewer) (string, error) {
		if time.Now().Before(f.expires) {
			return "", errors.New("the source is away")
		}
		return tokenOn(f.expires.Add(time.Hour), f.topic), nil
	})
	for _, f := range all {
		f.wantPublished(t, "before")
		_, err := f.Change(t.Context(), []wire.Start{pubsub.FromNow("other"), pubsub.FromNow("others.*")}, nil)
		require.NoError(t, err, f.way)
	}
	waitUntil(t, all, 0)
	for _, f := range all {
		ended := map[string]wire.GapReason{}
		for range 2 {
			gap := f.next(t).Gap
			require.NotNil(t, gap, f.way)
			ended[gap.Topic] = gap.Reason
		}
		require.Equal(t, map[string]wire.GapReason{"other": wire.GapForbidden, "others.*": wire.GapForbidden}, ended, f.way)
		f.wantPublished(t, "after")
		require.Len(t, f.Positions(), 1, f.way)
	}
}

// The new token permits nothing any more. The subscription ends, and says so.
func TestTheGoClientEndsWithTheLastTopicThatItsTokenPermits(t *testing.T) {
	t.Parallel()
	d := startWithTokens(t)
	all := d.renewers(t, 2*time.Second, func(f *renewer) (string, error) {
		if time.Now().Before(f.expires) {
			return "", errors.New("the source is away")
		}
		return tokenOn(f.expires.Add(time.Hour), "another"), nil
	})
	for _, f := range all {
		ctx, cancel := context.WithTimeout(t.Context(), surely)
		item, err := f.Next(ctx)
		if err == nil { // a session that goes on ends with a gap first
			require.Equal(t, wire.GapForbidden, item.Gap.Reason, f.way)
			_, err = f.Next(ctx)
		}
		cancel()
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeForbidden}, f.way)
	}
}

// The connection breaks, and the token expires meanwhile. The client gets one new token, and
// nothing is lost.
func TestTheGoClientGetsOneTokenForAReconnect(t *testing.T) {
	t.Parallel()
	d := startWithTokens(t)
	all := d.renewers(t, 2*time.Second, func(f *renewer) (string, error) { return tokenFor(f.expires.Add(time.Hour)), nil })
	for _, f := range all {
		f.passTo("", "")
	}
	waitUntil(t, all, 0)
	elsewhere := d.publisherElsewhere(t)
	for _, f := range all {
		f.publish(t, elsewhere, "meanwhile")
		f.passTo(d.PublicAddr(), d.TCPAddr())
	}
	for _, f := range all {
		f.wantNext(t, "meanwhile")
		f.wantPublished(t, "after")
		require.EqualValues(t, 2, f.asked.Load(), f.way)
	}
}

// While the source takes its time, deliveries and publishes go on with the old token.
func TestASlowSourceOfTokensHoldsNothingUp(t *testing.T) {
	t.Parallel()
	d := startWithTokens(t)
	give := make(chan struct{})
	all := d.renewers(t, 20*time.Second, func(f *renewer) (string, error) {
		<-give
		return tokenFor(f.expires.Add(time.Hour)), nil
	}, "stateless stream", "server-sent events")
	for _, f := range all {
		require.Eventually(t, func() bool { return f.asked.Load() == 2 }, surely, 10*time.Millisecond, f.way)
	}
	for _, f := range all {
		f.wantPublished(t, "before")
	}
	close(give)
	waitUntil(t, all, 0)
	for _, f := range all {
		f.wantPublished(t, "after")
		require.Zero(t, f.retries.Load(), f.way)
	}
}
