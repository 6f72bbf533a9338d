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
	Config  // with defaults; without a URL there is no application to call
	key     []byte
	network *http.Transport
}

// idleTimeout is less than the 5 s after which Node closes a connection, the shortest of
// the usual defaults. If the application closed a connection just as a call begins, the
// call would fail.
const idleTimeout = 4 * time.Second

// newApplication returns the application of a Config.
//
// Its connections lead only to the application: they use no proxy of the environment. They
// speak HTTP/1.1, so that each call has its own connection. The timeout of a call also
// bounds connecting: net/http continues that after the call has ended, for minutes if
// there is no answer, and each attempt uses up one of the connections.
func newApplication(cfg Config, dial dialer) *application {
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.Calls = cmp.Or(cfg.Calls, DefaultCalls)
	cfg.MessageBytes = cmp.Or(cfg.MessageBytes, defaultMessageBytes)
	key, err := KeyOf(cfg.Secret)
	if cfg.URL != "" && err != nil {
		panic("BUG: a hook's secret was not validated: " + err.Error())
	}
	network := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
			defer cancel()
			return dial(ctx, network, address)
		},
		TLSHandshakeTimeout: cfg.Timeout, Protocols: new(http.Protocols),
		MaxConnsPerHost: cfg.Calls, MaxIdleConns: cfg.Calls, MaxIdleConnsPerHost: cfg.Calls, IdleConnTimeout: idleTimeout,
		MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
	}
	network.Protocols.SetHTTP1(true)
	return &application{Config: cfg, key: key, network: network}
}

// ask makes one call. The error does not contain the URL.
func (a *application) ask(ctx context.Context, body []byte) (wire.HookAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL, bytes.NewReader(body))
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
	longest := 2*int64(a.MessageBytes) + 64<<10
	all, err := io.ReadAll(io.LimitReader(body, longest+1))
	switch {
	case err != nil:
		return wire.HookAnswer{}, fmt.Errorf("its answer broke off: %w", err)
	case int64(len(all)) > longest:
		return wire.HookAnswer{}, fmt.Errorf("its answer has more than %d bytes", longest)
	}
	answer, err := parseAnswer(all)
	if err != nil {
		return answer, fmt.Errorf("its answer is not valid: %w", err)
	}
	return answer, nil
}
