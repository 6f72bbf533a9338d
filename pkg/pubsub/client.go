package pubsub

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
)

// A Client connects to one daemon, or to several behind one address. Its methods may be
// called concurrently.
//
// A Client holds only idle connections, which Close releases. Close its subscriptions
// first.
type Client struct {
	base           *url.URL        // immutable
	http           *http.Client    // immutable
	own            *http.Transport // the one that Close cleans; nil if the caller brought a client
	tls            *tls.Config     // immutable; nil: Go's defaults, or the caller's client has another
	tcp            tcpPort
	tokens         *tokens // nil: none
	agent          string  // the User-Agent; empty: Go's
	maxBackoff     time.Duration
	publishRetry   time.Duration
	onPublishRetry func(err error, wait time.Duration) // nil: nobody wants to know
	clock          clock

	idempotencyMS atomic.Int64 // how long the daemon remembers a key, as a subscription was told last; 0: not told
}

// Defaults of the options of New.
const (
	DefaultMaxBackoff   = 10 * time.Second
	DefaultPublishRetry = 30 * time.Second // longer than a daemon takes to restart
)

// requestTimeout bounds a request that the daemon answers at once. It is long for
// a round trip, because a daemon that starts under load answers late.
const requestTimeout = 10 * time.Second

// maxAnswerBytes bounds an answer that is one JSON value. The largest, a session
// opened with 1000 topics of 255 bytes, is below 1 MiB.
const maxAnswerBytes = 4 << 20

// An Option changes a Client from its defaults.
type Option func(*Client) error

// WithHTTPClient makes the Client use hc, for example for its TLS configuration, proxy,
// cookies or RoundTripper. hc.Timeout must be 0, because it would cut polls and streams. If
// hc.CheckRedirect is nil, the Client follows no redirects: the daemon sends none.
// Client.Close does not close the connections of hc. Default: a client of its own.
func WithHTTPClient(hc *http.Client) Option {
	return func(c *Client) error {
		if hc.Timeout != 0 {
			return fmt.Errorf("the HTTP client's Timeout is %v, which would cut polls: set it to 0, and limit calls by their context", hc.Timeout)
		}
		c.http, c.own = hc, nil
		return nil
	}
}

// WithTLSConfig sets the TLS configuration for an https address, for example to trust a
// private authority. It cannot be combined with WithHTTPClient. For a client certificate
// that is renewed, set GetClientCertificate: subscriptions continue with the new certificate
// after the old one has expired. Default: Go's defaults.
func WithTLSConfig(cfg *tls.Config) Option {
	return func(c *Client) error {
		c.tls = cfg.Clone()
		return nil
	}
}

// WithUserAgent sets the User-Agent header of all requests, by which operators recognise the
// client in pubsubd sessions. Default: Go's.
func WithUserAgent(agent string) Option {
	return func(c *Client) error {
		c.agent = agent
		return nil
	}
}

// WithMaxBackoff sets the longest wait between attempts to reach the daemon. The Client waits
// longer if the daemon asks for it, and a subscription waits up to three times as long while
// something else answers. d must be positive. Default: DefaultMaxBackoff.
func WithMaxBackoff(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return fmt.Errorf("the longest backoff must be positive; got %v", d)
		}
		c.maxBackoff = d
		return nil
	}
}

// WithPublishRetry sets how long after its call Publish may still begin another attempt; see
// Publish. 0 means one attempt. d must not be negative. Default: DefaultPublishRetry.
func WithPublishRetry(d time.Duration) Option {
	return func(c *Client) error {
		if d < 0 {
			return fmt.Errorf("the time to retry a publish must not be negative; got %v", d)
		}
		c.publishRetry = d
		return nil
	}
}

// WithPublishRetryNotify calls notify before each wait for another attempt to publish, with the
// error and the length of the wait, so that a program can log or count. Calls of Publish wait for
// it, and may call it concurrently. Default: none.
func WithPublishRetryNotify(notify func(err error, wait time.Duration)) Option {
	return func(c *Client) error {
		c.onPublishRetry = notify
		return nil
	}
}

// New returns a Client of the daemon at baseURL: http or https, a host, and the path if a
// proxy serves the daemon below one. It does not connect.
func New(baseURL string, opts ...Option) (*Client, error) {
	base, err := parseBase(baseURL)
	if err != nil {
		return nil, err
	}
	own := newTransport()
	c := &Client{
		base:         base,
		http:         &http.Client{Transport: own},
		own:          own,
		tcp:          tcpPort{dial: newDialer().DialContext},
		maxBackoff:   DefaultMaxBackoff,
		publishRetry: DefaultPublishRetry,
		clock:        newClock(),
	}
	for _, opt := range opts {
		if err := opt(c); err != nil {
			return nil, err
		}
	}
	if c.tls != nil && c.own == nil {
		return nil, errors.New("an HTTP client and a TLS configuration are both set: set the TLS configuration in the client's Transport")
	}
	own.TLSClientConfig = c.tls
	if c.http.CheckRedirect == nil {
		hc := *c.http
		hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		c.http = &hc
	}
	return c, nil
}

func parseBase(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil && !strings.Contains(s, "://"):
		return nil, fmt.Errorf("the daemon's address is %q: write it as http://127.0.0.1:8080", s)
	case err != nil:
		return nil, fmt.Errorf("the daemon's address: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("the daemon's address is %q: write it as http://127.0.0.1:8080", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the daemon's address %q has a query or a fragment: omit it", u.Redacted())
	case u.User != nil:
		return nil, fmt.Errorf("the daemon's address %q has a user name or a password: omit them, and use WithToken for a token or an API key", u.Redacted())
	}
	return u, nil
}

// newTransport returns a transport fit for long polls.
//
// HTTP/1.1 alone: when a poll is given up its connection is closed, so that a dead
// connection is not used again; with HTTP/2 the next poll would get the same one.
// No compression: a proxy that compresses holds a stream back.
func newTransport() *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         newDialer().DialContext,
		TLSHandshakeTimeout: requestTimeout,
		Protocols:           &protocols,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 64, // every subscription polls the same host; the default of 2 would reconnect
		IdleConnTimeout:     90 * time.Second,
	}
}

func newDialer() *net.Dialer {
	return &net.Dialer{Timeout: requestTimeout, KeepAlive: 15 * time.Second}
}

// Close closes idle connections. The Client remains usable and opens new ones.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// request makes a request below the base. path must be escaped.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Request, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err == nil && c.agent != "" {
		req.Header.Set("User-Agent", c.agent)
	}
	return req, err
}

// send sends a request with the token, and once more with a new one if the daemon refuses that.
// Every answer with a status other than want is an error: what the daemon says is wrong, or the
// bare status. The caller closes the body.
func (c *Client) send(req *http.Request, want int) (resp *http.Response, err error) {
	err = c.tokens.use(req.Context(), func(token string) (err error) {
		resp, err = c.sendPlain(authorized(req, token), want) //nolint:bodyclose // the caller closes it
		return err
	})
	return resp, err
}

// sendOnce is send without the second time.
func (c *Client) sendOnce(req *http.Request, want int) (*http.Response, error) {
	token, err := c.tokens.get(req.Context(), "")
	if err != nil {
		return nil, err
	}
	return c.sendPlain(authorized(req, token), want)
}

func (c *Client) sendPlain(req *http.Request, want int) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, whyFailed(req.Context(), err)
	}
	if resp.StatusCode != want {
		defer resp.Body.Close()
		return nil, readProblem(resp)
	}
	return resp, nil
}

// whyFailed says what ended the context, if it has ended: that is why, whatever
// err says. It takes off *url.Error, which quotes the URL: a session's id is a
// capability and belongs in no log.
func whyFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if withURL := (*url.Error)(nil); errors.As(err, &withURL) {
		return withURL.Err
	}
	return err
}

// call sends body as JSON and reads the answer into answer, unless that is nil.
func (c *Client) call(ctx context.Context, method, path string, body any, want int, answer any) error {
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := c.request(ctx, method, path, nil, content)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return c.receive(req, want, answer)
}

// receive sends req and reads the answer into answer, unless that is nil.
func (c *Client) receive(req *http.Request, want int, answer any) error {
	resp, err := c.send(req, want)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if answer == nil {
		return nil
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("the answer was cut off: %w", whyFailed(req.Context(), err))
	}
	switch err := jsonv2.Unmarshal(content, answer); { // encoding/json ignores the case of names
	case err == nil:
		return nil
	case isTruncated(content):
		return errIncomplete
	default:
		return unexpected(want, "with what is no answer to this request (%v)", err)
	}
}

// isTruncated reports whether content is the beginning of a JSON document, or empty.
func isTruncated(content []byte) bool {
	var document json.RawMessage
	err := json.NewDecoder(bytes.NewReader(content)).Decode(&document)
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
