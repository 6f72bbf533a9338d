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

// An application is who is asked, by one Config. It belongs to many calls.
type application struct {
	url     string
	key     []byte
	timeout time.Duration
	longest int64 // answer that is read
	network *http.Transport
}

// newApplication returns nil if cfg names none.
func newApplication(cfg Config, dial dialer) *application {
	if cfg.URL == "" {
		return nil
	}
	key, err := KeyOf(cfg.Secret)
	if err != nil {
		panic("BUG: a hook's secret was not validated: " + err.Error())
	}
	return &application{
		url: cfg.URL, key: key, timeout: cmp.Or(cfg.Timeout, DefaultTimeout),
		longest: 2*int64(cmp.Or(cfg.MessageBytes, defaultMessageBytes)) + 64<<10,
		network: newNetwork(cmp.Or(cfg.Calls, DefaultCalls), cmp.Or(cfg.Timeout, DefaultTimeout), dial),
	}
}

// idleTimeout is less than the 5 s after which Node, whose default is the shortest of
// the usual ones, closes a connection: what it closes just as a call begins cannot be
// told from a call that failed.
const idleTimeout = 4 * time.Second

// newNetwork goes to the application and nowhere else: no proxy of the environment,
// and of HTTP only 1.1, where a call has a connection of its own. To connect takes no
// longer than a call may: net/http goes on with it when the call is over, for minutes
// where nobody answers, and it is one of so many meanwhile.
func newNetwork(calls int, timeout time.Duration, dial dialer) *http.Transport {
	t := &http.Transport{
		DialContext: dial.within(timeout), TLSHandshakeTimeout: timeout, Protocols: new(http.Protocols),
		MaxConnsPerHost: calls, MaxIdleConns: calls, MaxIdleConnsPerHost: calls, IdleConnTimeout: idleTimeout,
		MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// within returns a dialer that gives up after so long.
func (d dialer) within(timeout time.Duration) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return d(ctx, network, address)
	}
}

// retire lets go of the connections, those of calls under way at their end.
func (a *application) retire() {
	if a != nil {
		a.network.CloseIdleConnections()
	}
}

// ask makes one call. The URL is not in the error.
func (a *application) ask(ctx context.Context, body []byte) (wire.HookAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	r, err := a.request(ctx, body)
	if err != nil {
		return wire.HookAnswer{}, err
	}
	resp, err := a.network.RoundTrip(r) // which follows no redirects, and does not name the URL
	if err != nil {
		return wire.HookAnswer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		return wire.HookAnswer{}, fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return a.read(resp.Body)
}

func (a *application) request(ctx context.Context, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "pubsubd")
	sign(r.Header, a.key, newID(), time.Now(), body)
	return r, nil
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
		return answer, fmt.Errorf("its answer is not understood: %w", err)
	}
	return answer, nil
}
