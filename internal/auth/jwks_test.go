package auth

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A provider is a JWKS server in memory. answer may be replaced while it serves.
type provider struct {
	t       *testing.T
	mu      sync.Mutex
	answer  answer
	fetches atomic.Int64
	*Authority
	logged *observer.ObservedLogs
}

func (p *provider) RoundTrip(r *http.Request) (*http.Response, error) {
	p.fetches.Add(1)
	p.mu.Lock()
	answer := p.answer
	p.mu.Unlock()
	return answer(r)
}

func (p *provider) answers(next answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = next
}

// serves answers with a JWK set of these keys.
func (p *provider) serves(keys ...string) {
	p.answers(func(*http.Request) (*http.Response, error) {
		return response(http.StatusOK, `{"keys":[`+strings.Join(keys, ",")+`]}`), nil
	})
}

func response(status int, body string, headers ...string) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// wantFetches waits until nothing happens any more, and checks how many fetches there were.
func (p *provider) wantFetches(want int, why string) {
	p.t.Helper()
	synctest.Wait()
	require.EqualValues(p.t, want, p.fetches.Load(), why)
}

type answer func(*http.Request) (*http.Response, error)

// oneKey is the usual answer of a provider.
func oneKey(*http.Request) (*http.Response, error) {
	return response(http.StatusOK, jwkOf(edKey().Public(), "kid", "one")), nil
}

// hangs answers when the request is cancelled.
func hangs(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// withProvider runs a test in a bubble, with an authority that fetches the keys of a provider
// until the test ends. first is the answer at the start.
func withProvider(t *testing.T, first answer, test func(p *provider)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.DebugLevel)
		a, err := New(Config{JWKS: "https://login.example/jwks.json", TokenMaxAge: DefaultTokenMaxAge}, metrics.New("test"), zap.New(core))
		require.NoError(t, err)
		p := &provider{t: t, answer: first, Authority: a, logged: logged}
		a.jwks.client.Transport = p
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.jwks.run(ctx); close(done) }()
		test(p)
		stop()
		<-done // it ends although a fetch may hang
	})
}

func TestKeysOfTheJWKSRotate(t *testing.T) {
	withProvider(t, oneKey, func(p *provider) {
		old := token(good("exp", time.Now().Unix()+3000), "kid", "one")
		next := sign(jose.ES256, p256(), good("exp", time.Now().Unix()+3000), "kid", "two")
		p.wantFetches(1, "at the start")
		wantAccepted(t, p.Authority, old)

		time.Sleep(31 * time.Second)
		p.serves(jwkOf(edKey().Public(), "kid", "one"), jwkOf(p256().Public(), "kid", "two"))
		require.EqualValues(t, 1000, wantRefused(t, p.Authority, next, wire.CodeOverloaded, "fetches the keys"))
		p.wantFetches(2, "for the unknown key id")
		ofNext := wantAccepted(t, p.Authority, next)
		ofOld := wantAccepted(t, p.Authority, old)
		require.False(t, p.Refresh(time.Now()), "no key was removed")

		p.serves(jwkOf(p256().Public(), "kid", "two"))
		time.Sleep(jwksRefresh)
		p.wantFetches(3, "after five minutes")
		require.True(t, p.Refresh(time.Now()), "sessions must be looked at")
		require.True(t, p.Revoked(ofOld))
		require.False(t, p.Revoked(ofNext))
		wantAccepted(t, p.Authority, next)
		wantRefused(t, p.Authority, old, wire.CodeOverloaded, "")
		p.wantFetches(4, "for the key id that is unknown now")
		wantRefused(t, p.Authority, old, wire.CodeUnauthorized, "key id")
	})
}

// Tokens with unknown key ids cause at most one fetch in 30 s.
func TestUnknownKeyIDsCauseFewFetches(t *testing.T) {
	withProvider(t, oneKey, func(p *provider) {
		p.wantFetches(1, "at the start")
		p.answers(func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Millisecond)
			return response(http.StatusOK, jwkOf(edKey().Public(), "kid", "one")), nil
		})
		for _, kid := range []string{"a", "b", "c"} {
			wantRefused(t, p.Authority, token(good(), "kid", kid), wire.CodeOverloaded, "")
		}
		time.Sleep(time.Second)
		p.wantFetches(2, "one for three")
		for range 28 {
			wantRefused(t, p.Authority, token(good(), "kid", "d"), wire.CodeUnauthorized, "key id")
			time.Sleep(time.Second)
		}
		p.wantFetches(2, "within 30 s")
		time.Sleep(2 * time.Second)
		wantRefused(t, p.Authority, token(good(), "kid", "e"), wire.CodeOverloaded, "")
		time.Sleep(time.Second)
		p.wantFetches(3, "after 30 s")
		wantRefused(t, p.Authority, sign(jose.EdDSA, otherEd(), good(), "kid", "one"), wire.CodeUnauthorized, "signature")
		wantRefused(t, p.Authority, raw(`{"alg":"none"}`, claimsText(good())), wire.CodeUnauthorized, "not signed")
		time.Sleep(time.Minute)
		wantRefused(t, p.Authority, sign(jose.EdDSA, otherEd(), good(), "kid", "one"), wire.CodeUnauthorized, "signature")
		p.wantFetches(3, "a wrong signature causes none")
	})
}

// A fetch that began before an unknown key id came may not have its key. So tokens with that id
// wait for the next fetch.
func TestAnEarlierFetchDoesNotAnswerForAKeyID(t *testing.T) {
	slow := func(r *http.Request) (*http.Response, error) {
		time.Sleep(2 * time.Second)
		return oneKey(r)
	}
	withProvider(t, slow, func(p *provider) {
		time.Sleep(time.Second)
		for _, want := range []wire.Code{wire.CodeOverloaded, wire.CodeOverloaded, wire.CodeUnauthorized} {
			wantRefused(t, p.Authority, token(good(), "kid", "two"), want, "")
			time.Sleep(1900 * time.Millisecond)
		}
		p.wantFetches(2, "at the start, and for the key id")
	})
}

// A server that hangs delays nobody but the fetch, which times out.
func TestAHangingJWKSDelaysNobody(t *testing.T) {
	withProvider(t, hangs, func(p *provider) {
		valid := token(good("exp", time.Now().Unix()+3000), "kid", "one")
		begun := time.Now()
		wantRefused(t, p.Authority, valid, wire.CodeOverloaded, "fetches")
		require.Zero(t, time.Since(begun))
		time.Sleep(jwksTimeout)
		p.wantFetches(2, "it is asked again at once, because a token waits")
		p.serves(jwkOf(edKey().Public(), "kid", "one"))
		wantRefused(t, p.Authority, valid, wire.CodeOverloaded, "fetches")
		time.Sleep(jwksTimeout + jwksRetry)
		synctest.Wait()
		wantAccepted(t, p.Authority, valid)
		require.EqualValues(t, 2, testutil.ToFloat64(p.jwks.failures))
		require.Len(t, p.logged.FilterMessageSnippet("cannot fetch the keys").All(), 1, "once until a fetch succeeds")

		p.answers(hangs)
		time.Sleep(jwksRefresh)
		wantAccepted(t, p.Authority, valid)
	})
}

// Keys are refused an hour after the last successful fetch, also for remembered tokens. That
// ends no session: nobody has removed a key.
func TestStaleKeysAreRefused(t *testing.T) {
	withProvider(t, oneKey, func(p *provider) {
		valid := token(good("exp", time.Now().Unix()+4*3600), "kid", "one")
		p.wantFetches(1, "at the start")
		ofSession := wantAccepted(t, p.Authority, valid)
		p.answers(func(*http.Request) (*http.Response, error) { return response(http.StatusBadGateway, ""), nil })
		time.Sleep(jwksStale - time.Second)
		p.expire(time.Now(), func() {})
		wantAccepted(t, p.Authority, valid)
		time.Sleep(time.Second)
		p.expire(time.Now(), func() {})
		require.False(t, p.Refresh(time.Now()))
		wantRefused(t, p.Authority, valid, wire.CodeOverloaded, "")
		require.False(t, p.Revoked(ofSession))
		var g metrics.Gauges
		p.Gauges(&g)
		require.Zero(t, g.TokenKeys)
		require.Equal(t, jwksStale, g.JWKSAge)
		require.Len(t, p.logged.FilterMessageSnippet("are refused").All(), 1)

		p.serves(jwkOf(edKey().Public(), "kid", "one"))
		time.Sleep(jwksRetry)
		synctest.Wait()
		wantAccepted(t, p.Authority, valid)
		require.False(t, p.Refresh(time.Now()))
		require.False(t, p.Revoked(ofSession))
	})
}

// Answers that a fetch refuses. The keys before stay.
func TestAnswersOfAJWKSThatAreRefused(t *testing.T) {
	redirect := func(to string) *http.Response { return response(http.StatusFound, "", "Location", to) }
	one := jwkOf(edKey().Public(), "kid", "one")
	for name, refused := range map[string]func(*http.Request) *http.Response{
		"huge": func(*http.Request) *http.Response {
			return response(200, `{"keys":[`+strings.Repeat(" ", maxJWKSBytes)+one+`]}`)
		},
		"too many blanks": func(*http.Request) *http.Response { return response(200, one+strings.Repeat(" ", maxJWKSBytes)) },
		"endless":         func(*http.Request) *http.Response { r := response(200, ""); r.Body = io.NopCloser(endless{}); return r },
		"not JSON":        func(*http.Request) *http.Response { return response(200, `{"keys":[`) },
		"a member twice":  func(*http.Request) *http.Response { return response(200, `{"keys":[],"keys":[`+one+`]}`) },
		"no keys":         func(*http.Request) *http.Response { return response(200, `{"keys":[]}`) },
		"only secrets":    func(*http.Request) *http.Response { return response(200, jwkOf(theSecret)) },
		"only private":    func(*http.Request) *http.Response { return response(200, jwkOf(edKey())) },
		"too many": func(*http.Request) *http.Response {
			return response(200, `{"keys":[`+strings.Repeat(one+",", maxKeys)+one+`]}`)
		},
		"not found":    func(*http.Request) *http.Response { return response(404, one) },
		"another host": func(r *http.Request) *http.Response { return redirected(r, "https://evil.example/jwks", one, redirect) },
		"another port": func(r *http.Request) *http.Response {
			return redirected(r, "https://login.example:444/jwks", one, redirect)
		},
		"another scheme":  func(r *http.Request) *http.Response { return redirected(r, "http://login.example/jwks", one, redirect) },
		"redirected long": func(r *http.Request) *http.Response { return redirect(r.URL.String() + "x") },
	} {
		t.Run(name, func(t *testing.T) {
			withProvider(t, oneKey, func(p *provider) {
				synctest.Wait()
				valid := token(good("exp", time.Now().Unix()+3000), "kid", "one")
				wantAccepted(t, p.Authority, valid)
				p.answers(func(r *http.Request) (*http.Response, error) { return refused(r), nil })
				time.Sleep(jwksRefresh)
				synctest.Wait()
				require.EqualValues(t, 1, testutil.ToFloat64(p.jwks.failures))
				require.LessOrEqual(t, p.fetches.Load(), int64(5), "with redirects")
				wantAccepted(t, p.Authority, valid)
			})
		})
	}
}

// redirected answers the URL of the setting with a redirect, and any other with the keys.
func redirected(r *http.Request, to, keys string, redirect func(string) *http.Response) *http.Response {
	if r.URL.String() == "https://login.example/jwks.json" {
		return redirect(to)
	}
	return response(http.StatusOK, keys)
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// A redirect on the same host is followed. Secrets, private keys and unknown keys of a set are
// ignored, and others count.
func TestAJWKSMayHaveOtherKeys(t *testing.T) {
	first := func(r *http.Request) (*http.Response, error) {
		set := `{"keys":[` + strings.Join([]string{jwkOf(theSecret, "kid", "secret"), jwkOf(p384(), "kid", "private"), `{"kty":"new"}`, jwkOf(edKey().Public(), "kid", "one")}, ",") + `]}`
		return redirected(r, "https://login.example/moved", set, func(to string) *http.Response { return response(302, "", "Location", to) }), nil
	}
	withProvider(t, first, func(p *provider) {
		p.wantFetches(2, "at the start, and the redirect")
		wantAccepted(t, p.Authority, token(good(), "kid", "one"))
		fetched := p.logged.FilterMessage("keys of auth.jwks fetched").All()
		require.Len(t, fetched, 1)
		require.EqualValues(t, 1, fetched[0].ContextMap()["keys"])
		require.EqualValues(t, 3, fetched[0].ContextMap()["ignored"])
		require.NotContains(t, fetched[0].ContextMap()["reasons"], "MDEyMzQ1Njc4")
		wantRefused(t, p.Authority, sign(jose.HS256, theSecret, good(), "kid", "secret"), wire.CodeOverloaded, "")
		synctest.Wait()
		wantRefused(t, p.Authority, sign(jose.HS256, theSecret, good(), "kid", "secret"), wire.CodeUnauthorized, "key id")
	})
}

// An answer with a large head is refused. One with a small head is read.
func TestTheHeadOfAJWKSAnswerIsBounded(t *testing.T) {
	one := jwkOf(edKey().Public(), "kid", "one")
	for size, refused := range map[int]bool{maxJWKSHeadBytes / 2: false, 2 * maxJWKSHeadBytes: true} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Padding", strings.Repeat("x", size))
			_, _ = io.WriteString(w, one)
		}))
		defer server.Close()
		text, err := newJWKS(server.URL, zap.NewNop(), nil, nil).get(t.Context())
		if refused {
			require.ErrorContains(t, err, "exceeded")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, one, string(text))
	}
}
