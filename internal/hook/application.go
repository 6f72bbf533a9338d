package hook

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An application makes calls as one Config describes. All methods may be called
// concurrently.
type application struct {
	url     string
	key     []byte
	timeout time.Duration // of a call
	longest int64         // answer, in bytes
	network *http.Transport
}

// idleTimeout is less than the 5 s after which Node closes a connection, the shortest of
// the usual defaults. If the application closed a connection just as a call begins, the
// call would fail.
const idleTimeout = 4 * time.Second

// newApplication returns nil if cfg names no application.
//
// Its connections lead only to the application: they use no proxy of the environment. They
// speak HTTP/1.1, so that each call has its own connection. The timeout of a call also
// bounds connecting: net/http continues that after the call has ended, for minutes if
// there is no answer, and each attempt uses up one of the connections.
func newApplication(cfg Config, dial dialer) *application {
	if cfg.URL == "" {
		return nil
	}
	key, err := KeyOf(cfg.Secret)
	if err != nil {
		panic("BUG: a hook's secret was not validated: " + err.Error())
	}
	timeout, calls := cmp.Or(cfg.Timeout, DefaultTimeout), cmp.Or(cfg.Calls, DefaultCalls)
	network := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return dial(ctx, network, address)
		},
		TLSHandshakeTimeout: timeout, Protocols: new(http.Protocols),
		MaxConnsPerHost: calls, MaxIdleConns: calls, MaxIdleConnsPerHost: calls, IdleConnTimeout: idleTimeout,
		MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
	}
	network.Protocols.SetHTTP1(true)
	longest := 2*int64(cmp.Or(cfg.MessageBytes, defaultMessageBytes)) + 64<<10
	return &application{url: cfg.URL, key: key, timeout: timeout, longest: longest, network: network}
}

// retire closes idle connections. Those of calls in flight close after idleTimeout. It may
// be called on nil.
func (a *application) retire() {
	if a != nil {
		a.network.CloseIdleConnections()
	}
}

// ask makes one call. The error does not contain the URL.
func (a *application) ask(ctx context.Context, body []byte) (wire.HookAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, bytes.NewReader(body))
	if err != nil {
		return wire.HookAnswer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "pubsubd")
	sign(r.Header, a.key, newID(), time.Now(), body)
	resp, err := a.network.RoundTrip(r) // follows no redirects, and its errors do not contain the URL
	if err != nil {
		return wire.HookAnswer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		return wire.HookAnswer{}, fmt.Errorf("it answered with status %d", resp.StatusCode)
	}
	return a.read(resp.Body)
}

func (a *application) read(body io.Reader) (wire.HookAnswer, error) {
	all, err := io.ReadAll(io.LimitReader(body, a.longest+1))
	switch {
	case err != nil:
		return wire.HookAnswer{}, fmt.Errorf("its answer broke off: %w", err)
	case int64(len(all)) > a.longest:
		return wire.HookAnswer{}, fmt.Errorf("its answer has more than %d bytes", a.longest)
	}
	answer, err := parseAnswer(all)
	if err != nil {
		return answer, fmt.Errorf("its answer is not valid: %w", err)
	}
	return answer, nil
}
