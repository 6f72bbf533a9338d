package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Variables that name a daemon for all commands that speak to one. They are among the
// config.CommandVariables, which serve ignores.
const (
	serverEnv = "PUBSUBD_SERVER"
	adminEnv  = "PUBSUBD_ADMIN"
)

// variable returns a variable of the commands, and the name that it has. Without
// PUBSUBD_NAME, PUBSUB_NAME counts: older versions had only that.
func variable(name string) (text, said string) {
	older := "PUBSUB_" + strings.TrimPrefix(name, "PUBSUBD_")
	if os.Getenv(name) == "" && os.Getenv(older) != "" {
		name = older
	}
	return os.Getenv(name), name
}

// Where serve listens if the environment says so, and whether it speaks TLS there. In
// a container its commands have the same, and so find the daemon that they are beside.
const (
	listenPublicEnv = "PUBSUBD_LISTEN_PUBLIC"
	listenAdminEnv  = "PUBSUBD_LISTEN_ADMIN"
	adminKeyEnv     = "PUBSUBD_ADMIN_KEY_FILE"
	serveCertEnv    = "PUBSUBD_TLS_CERT"         // of the listener for clients
	serveDomainsEnv = "PUBSUBD_TLS_ACME_DOMAINS" // the same; the certificate is for these names
)

// An address is the base URL of one of a daemon's listeners: what the flag says,
// else the environment by a variable for it, else by serve's, else the default.
type address struct {
	text      string
	env       string
	listenEnv string
	flag      *pflag.Flag
	authority *authority
	bearer    *bearer      // of clients; nil: requests have no token
	keyFile   *string      // of operators; nil: requests have no key
	http      *http.Client // made on first need
}

// bindServer adds --server, the listener for clients, and --token-file.
func bindServer(f *pflag.FlagSet) *address {
	a := bindAddress(f, "server", serverEnv, listenPublicEnv, "http://127.0.0.1:8080", "base `URL` of the daemon, or its Unix socket (unix:/run/pubsubd/public.sock)")
	a.bearer = bindBearer(f)
	return a
}

// bindAdmin adds --admin, the listener for operators.
func bindAdmin(f *pflag.FlagSet) *address {
	return bindAddress(f, "admin", adminEnv, listenAdminEnv, "http://127.0.0.1:8081", "base `URL` of the daemon's admin listener, or its Unix socket (unix:/run/pubsubd/admin.sock)")
}

// bindAdminKey adds --admin-key-file, which gives requests to the admin listener the key of
// operators.
func (a *address) bindAdminKey(f *pflag.FlagSet) {
	a.keyFile = f.String("admin-key-file", os.Getenv(adminKeyEnv), "`FILE` with the operators' key, as in the setting admin.key_file; default: $"+adminKeyEnv+"; a Unix socket needs no key")
	f.Lookup("admin-key-file").DefValue = "" // the help is the same everywhere
}

// authorize adds the token of a client, or the key of operators, to a request. The error is a
// usage error.
func (a *address) authorize(r *http.Request) error {
	token, err := a.bearer.token()
	if err != nil {
		return err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if a.keyFile == nil || *a.keyFile == "" {
		return nil
	}
	key, err := config.ReadText(*a.keyFile)
	if err != nil {
		return usageError{fmt.Errorf("--admin-key-file: %w", err)}
	}
	r.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(key)))
	return nil
}

// unixPrefix begins the address of a Unix socket.
const unixPrefix = "unix:"

func bindAddress(f *pflag.FlagSet, name, env, listenEnv, otherwise, usage string) *address {
	a := &address{env: env, listenEnv: listenEnv, authority: bindAuthority(f)}
	f.StringVar(&a.text, name, otherwise, usage+"; default: $"+env+", then $"+listenEnv)
	a.flag = f.Lookup(name)
	return a
}

// said returns what counts, and what said it.
func (a *address) said() (text, where string) {
	if a.flag.Changed {
		return a.text, "--" + a.flag.Name
	}
	if text, where := variable(a.env); text != "" {
		return text, where
	}
	switch listens := os.Getenv(a.listenEnv); {
	case strings.HasPrefix(listens, unixPrefix):
		return listens, a.listenEnv
	case listens != "":
		return a.guess(listens), a.listenEnv
	}
	return a.text, "--" + a.flag.Name
}

// guess returns the URL of the listener if the environment says where serve listens. With
// ACME the certificate is for a name, so the URL has the first name.
func (a *address) guess(listens string) string {
	if a.listenEnv != listenPublicEnv {
		return "http://" + reachable(listens)
	}
	name, _, _ := strings.Cut(os.Getenv(serveDomainsEnv), ",")
	_, port, err := net.SplitHostPort(listens)
	switch {
	case name != "" && err == nil:
		return "https://" + net.JoinHostPort(strings.TrimSpace(name), port)
	case os.Getenv(serveCertEnv) != "":
		return "https://" + reachable(listens)
	}
	return "http://" + reachable(listens)
}

// reachable returns an address that reaches who listens on one from the same machine:
// loopback, if it listens on every interface.
func reachable(listens string) string {
	host, port, err := net.SplitHostPort(listens)
	if err != nil {
		return listens
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.Unmap().IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listens
}

// socket returns the path of the listener's Unix socket, or "" if the address is a URL.
func (a *address) socket() string {
	text, _ := a.said()
	path, isSocket := strings.CutPrefix(text, unixPrefix)
	if !isSocket {
		return ""
	}
	return path
}

// url returns the base URL, which ends in no slash. The error is a usage error.
func (a *address) url() (*url.URL, error) {
	text, where := a.said()
	if a.socket() != "" {
		return &url.URL{Scheme: "http", Host: "localhost"}, nil
	}
	u, err := url.Parse(loadtest.WithScheme(text))
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, usageError{fmt.Errorf("%s is %q: want a URL such as %s, host:port, or unix:/path", where, text, a.flag.DefValue)}
	}
	return u, nil
}

// typed returns what counts as the user wrote it, without a password.
func (a *address) typed() string {
	text, _ := a.said()
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted()
	}
	return text
}

// client returns a client of the listener, which the caller closes. The error is a
// usage error.
func (a *address) client(options ...pubsub.Option) (*pubsub.Client, error) {
	base, err := a.url()
	if err != nil {
		return nil, err
	}
	connects, err := a.connects()
	if err != nil {
		return nil, err
	}
	sends, err := a.bearer.options()
	if err != nil {
		return nil, err
	}
	c, err := pubsub.New(base.String(), append(append(options, sends...), connects)...)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

// connects returns the option by which a client connects to the listener. The error is a usage
// error.
func (a *address) connects() (pubsub.Option, error) {
	if a.socket() != "" {
		err := a.makeHTTP()
		return pubsub.WithHTTPClient(a.http), err
	}
	trusts, err := a.authority.tls()
	return pubsub.WithTLSConfig(trusts), err
}

// unreached adds to an error of a connection how to name another daemon, whom to trust, or
// which certificate to show, and to a refusal how to send a token.
func (a *address) unreached(err error) error {
	if verify := (*tls.CertificateVerificationError)(nil); errors.As(err, &verify) {
		return fmt.Errorf("%w: name the file of a private authority with --%s or %s", err, authorityFlag, authorityEnv)
	}
	failed := (*net.OpError)(nil)
	switch cert, by := a.authority.cert.said(); {
	case !errors.As(err, &failed):
		return a.bearer.missing(err)
	case a.socket() != "" && errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run the command as a user who may connect to the socket", err)
	case failed.Op == "dial":
		return fmt.Errorf("%w: is the daemon running at %s? --%s or %s sets another address", err, a.typed(), a.flag.Name, a.env)
	case cert != "": // an alert of TLS, or a reset that overtook it
		return fmt.Errorf("%w: the daemon may not accept the certificate of %s: it must be valid, and signed by an authority in the daemon's tls.client_ca", err, by)
	}
	return err
}

// ask sends a request to the listener and reads what it answers with 200 as JSON.
// The error is a *wire.Problem if the daemon explained it.
func (a *address) ask(ctx context.Context, method string, u *url.URL, answer any) error {
	return a.askWith(ctx, method, u, nil, answer)
}

// askWith is ask with a body, which it sends as JSON; nil: none.
func (a *address) askWith(ctx context.Context, method string, u *url.URL, body, answer any) error {
	resp, err := a.send(ctx, method, u, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return a.bearer.missing(refusal(resp))
	}
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		return fmt.Errorf("%s %s: the answer does not come from pubsubd (%w): does --%s name the right listener?", method, u.Redacted(), err, a.flag.Name)
	}
	return nil
}

// send sends a request, with a body as JSON unless that is nil. The caller closes the body of
// the answer.
func (a *address) send(ctx context.Context, method string, u *url.URL, body any) (*http.Response, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if err := a.authorize(r); err != nil {
		return nil, err
	}
	if err := a.makeHTTP(); err != nil {
		return nil, err
	}
	resp, err := a.http.Do(r)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("%s %s: no answer in time; raise --timeout", method, u.Redacted())
	}
	return resp, a.unreached(err)
}

// makeHTTP makes a client that trusts whom the authority says, if there is none yet.
func (a *address) makeHTTP() error {
	if a.http != nil {
		return nil
	}
	trusts, err := a.authority.tls()
	if err != nil {
		return err
	}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: trusts}
	if path := a.socket(); path != "" {
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	a.http = &http.Client{Transport: t}
	return nil
}

// maxRefusalBytes bounds what is read of an error.
const maxRefusalBytes = 64 << 10

// refusal makes an error of an answer that is not 200.
func refusal(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusalBytes)) // part of one is told as its status
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p wire.Problem
	if mediaType == wire.ProblemType && json.Unmarshal(text, &p) == nil && p.Code != "" {
		return &p
	}
	why := "is this the address of a pubsubd server?"
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		why = "the proxy does not reach pubsubd"
	}
	return fmt.Errorf("%s %s answered %s, without pubsubd's error body: %s", resp.Request.Method, resp.Request.URL.Redacted(), resp.Status, why)
}
