package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A wayCheck checks the way through all proxies to the daemon at base.
type wayCheck struct {
	*doctor
	base   *url.URL
	origin string // of the pages; without --origin that of base
}

// checkURL checks the way to the daemon. The error is a usage error.
func (d *doctor) checkURL(ctx context.Context) ([]finding, error) {
	base, err := d.server.url()
	if err != nil {
		return nil, err
	}
	if err := d.server.makeHTTP(); err != nil {
		return nil, err
	}
	if token, err := d.server.bearer.token(); err != nil {
		return nil, err
	} else if token == "" {
		d.server.bearer = nil // the checks run at once, and a bearer that has its token does not change
	}
	w := wayCheck{doctor: d, base: base, origin: base.Scheme + "://" + base.Host}
	if d.origin != "" {
		w.origin = d.origin
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	findings := w.checkAnswer(ctx)
	if findings[0].Status == isFailure {
		return findings, nil
	}
	checks := []struct {
		name  string
		check func(context.Context) finding
	}{{"stream", w.checkStream}, {"websocket", w.checkWebSocket}, {"poll", w.checkPoll}, {"origin", w.checkCORS}}
	if d.origin == "" {
		checks = checks[:3]
	}
	found := make([]finding, len(checks))
	var running sync.WaitGroup
	for i, c := range checks {
		running.Go(func() { found[i] = c.check(ctx).of(c.name) })
	}
	running.Wait()
	return append(findings, found...), nil
}

// fromPage sends requests as a page of the origin does.
type fromPage struct {
	origin string
	by     http.RoundTripper
}

func (p fromPage) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Origin", p.origin)
	return p.by.RoundTrip(r)
}

// send sends a request with the token, and without an origin.
func (w wayCheck) send(ctx context.Context, method, path, query string, body any) (*http.Response, error) {
	u := w.base.JoinPath(path)
	u.RawQuery = query
	return w.server.send(ctx, method, u, body)
}

// checkAnswer checks that a pubsubd answers, that it is asked for the path and the Host that
// clients need, and its clock.
func (w wayCheck) checkAnswer(ctx context.Context) []finding {
	const remedy = "start the daemon, or correct the URL; each proxy must forward /v1/"
	begun := time.Now()
	resp, err := w.send(ctx, http.MethodGet, "v1/openapi.yaml", "", nil)
	if err != nil {
		return []finding{unreachable(err, remedy).of("url")}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/yaml" {
		err := refusal(resp)
		var p *wire.Problem
		switch {
		case !errors.As(err, &p):
			return []finding{failure(remedy, "%v", err).of("url")}
		case p.Code == wire.CodeNotFound, p.Code == wire.CodeWrongHost:
			return []finding{failure(p.Remedy, "a pubsubd answers at %s, but not to this request: %s", w.server.typed(), p.Detail).of("url")}
		}
	}
	return []finding{
		ok("a pubsubd answers at %s", w.server.typed()).of("url"),
		checkDate(resp.Header.Get("Date"), begun, time.Now()).of("date"),
	}
}

// unreachable judges an error of a connection. Some errors have a remedy of their own.
func unreachable(err error, remedy string) finding {
	if unknown, is := errors.AsType[*net.DNSError](err); is && unknown.IsNotFound {
		return failure("correct the name in the URL, or add it to DNS", "%v", unknown)
	}
	if verify, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return failure(untrustedRemedy(verify), "the server's certificate is not trusted: %v", verify.Err)
	}
	return failure(remedy, "%v", err)
}

func untrustedRemedy(err error) string {
	if _, is := errors.AsType[x509.HostnameError](err); is {
		return "use a name that the certificate has, or get a certificate for this name"
	}
	if invalid, is := errors.AsType[x509.CertificateInvalidError](err); is && invalid.Reason == x509.Expired {
		return "renew the certificate, and check the clock of this machine"
	}
	return "name the file of a private authority with --" + authorityFlag + " or " + authorityEnv + "; if the authority is public, let the server send its whole chain"
}

// Tokens and people tolerate this much of a difference between clocks. The daemon refuses a
// token that is dated more than maxAhead ahead of its clock.
const (
	maxDifference = 2 * time.Second
	maxAhead      = 10 * time.Second
)

// checkDate compares a Date header, which is in whole seconds, with this clock.
func checkDate(header string, begun, answered time.Time) finding {
	date, err := http.ParseTime(header)
	if err != nil {
		return ok("the answer has no date to compare the clock with")
	}
	middle := begun.Add(answered.Sub(begun) / 2)
	ahead := middle.Sub(date.Add(time.Second / 2)).Round(time.Second / 10)
	text := fmt.Sprintf("this clock is %v ahead of the daemon's", ahead)
	if ahead < 0 {
		text = fmt.Sprintf("this clock is %v behind the daemon's", -ahead)
	}
	switch {
	case ahead.Abs() > maxAhead:
		return failure(syncRemedy+" on both machines", "%s: the daemon refuses tokens that are dated ahead of its clock", text)
	case ahead.Abs() > maxDifference:
		return warning(syncRemedy+" on both machines", "%s", text)
	}
	return ok("%s", text)
}

// checkStream opens a stream. Its first frame, and then a heartbeat, must arrive while the
// stream is open.
func (w wayCheck) checkStream(ctx context.Context) finding {
	const remedy = "turn off response buffering and compression for /v1/ in each proxy (nginx: proxy_buffering off, gzip off)"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(w.firstFrame, cancel)
	begun := time.Now()
	resp, err := w.send(ctx, http.MethodGet, "v1/poll", url.Values{"mode": {"stream"}, "topic": {w.topic}}.Encode(), nil)
	switch {
	case ctx.Err() != nil:
		return failure(remedy, "no frame of a stream within %v: a proxy buffers it", w.elapsed(begun))
	case err != nil:
		return failure(remedy, "%v", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return w.refused(refusal(resp), remedy)
	}
	lines := bufio.NewReader(resp.Body)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return failure(remedy, "no frame of a stream within %v: a proxy buffers it", w.elapsed(begun))
	}
	after := w.elapsed(begun)
	var frame struct{ Hello *wire.Hello }
	if err := json.Unmarshal(first, &frame); err != nil || frame.Hello == nil || frame.Hello.Limits == nil {
		return failure("each proxy must forward /v1/ without changes", "the stream does not begin with hello: %.100s", first)
	}
	heartbeat := frame.Hello.Limits.Heartbeat()
	late.Reset(heartbeat + w.firstFrame)
	begun = time.Now()
	switch _, err := lines.ReadBytes('\n'); {
	case err == nil:
		return ok("the first frame arrived after %v, and the next after %v", after, w.elapsed(begun))
	case w.elapsed(begun) < heartbeat && ctx.Err() != nil:
		return warning(fmt.Sprintf("give --timeout more than poll.heartbeat (%v)", heartbeat), "the first frame arrived after %v; --timeout ended the check before a heartbeat", after)
	}
	return failure(remedy+", and raise its read timeout above two of poll.heartbeat", "the first frame arrived after %v, but no heartbeat within %v", after, w.elapsed(begun))
}

func (w wayCheck) elapsed(since time.Time) time.Duration {
	return time.Since(since).Round(time.Millisecond)
}

// checkWebSocket opens a WebSocket as a page of the origin does. Its first frame must arrive.
func (w wayCheck) checkWebSocket(ctx context.Context) finding {
	const remedy = "let each proxy forward the upgrade (nginx: proxy_http_version 1.1, and the headers Upgrade and Connection) and the header Host; until then clients use streams"
	begun := time.Now()
	through := w.server.http.Transport
	err := w.openWebSocket(ctx, fromPage{w.origin, through})
	p, _ := errors.AsType[*wire.Problem](err)
	switch {
	case err == nil:
		return ok("opened, and the first frame arrived after %v", w.elapsed(begun))
	case p != nil && p.Code == wire.CodeForbidden && w.openWebSocket(ctx, through) == nil:
		return failure("add "+w.origin+" to cors.origins, or let each proxy forward Host with its port (nginx: proxy_set_header Host $http_host)",
			"the daemon refuses WebSockets of pages of %s: %s", w.origin, p.Detail)
	default:
		return w.refused(err, remedy)
	}
}

func (w wayCheck) openWebSocket(ctx context.Context, through http.RoundTripper) error {
	options, err := w.server.bearer.options()
	if err != nil {
		return err
	}
	client, err := pubsub.New(w.base.String(), append(options, pubsub.WithHTTPClient(&http.Client{Transport: through}))...)
	if err != nil {
		return err
	}
	return trySubscribe(ctx, client, w.topic, pubsub.WithTransport(pubsub.WebSocket), pubsub.WithOpenTimeout(w.firstFrame))
}

// checkPoll polls until the daemon answers.
func (w wayCheck) checkPoll(ctx context.Context) finding {
	const remedy = "let each proxy forward /v1/"
	resp, err := w.send(ctx, http.MethodPost, "v1/sessions", "", wire.OpenRequest{Topics: []wire.Start{pubsub.FromNow(w.topic)}})
	if err != nil {
		return failure(remedy, "%v", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return w.refused(refusal(resp), remedy)
	}
	var opened wire.SessionOpened
	if err := json.NewDecoder(resp.Body).Decode(&opened); err != nil {
		return failure(remedy, "the answer to POST /v1/sessions: %v", err)
	}
	session := "v1/sessions/" + opened.Session
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.firstFrame)
		defer cancel()
		if resp, err := w.send(ctx, http.MethodDelete, session, "", nil); err == nil {
			resp.Body.Close()
		}
	}()
	begun, lasts := time.Now(), opened.Limits.PollTimeout()
	raise := fmt.Sprintf("raise the read timeout of each proxy above poll.timeout by 10 s, to %v", lasts+10*time.Second)
	resp, err = w.send(ctx, http.MethodGet, session+"/poll", "ack=0", nil)
	switch after := w.elapsed(begun); {
	case ctx.Err() != nil && after < lasts:
		return warning(fmt.Sprintf("give --timeout more than poll.timeout (%v)", lasts), "a poll lasted %v, when --timeout ended the check", after)
	case err != nil:
		return failure(raise, "a poll failed after %v: %v", after, withoutURL(err))
	case resp.StatusCode != http.StatusOK:
		resp.Body.Close()
		return failure(raise, "a poll was answered with status %d after %v", resp.StatusCode, after)
	default:
		resp.Body.Close()
		return ok("a poll lasted %v; poll.timeout is %v", after, lasts)
	}
}

// withoutURL takes the URL off an error: a session's id is a capability.
func withoutURL(err error) error {
	if withURL := (*url.Error)(nil); errors.As(err, &withURL) {
		return withURL.Err
	}
	return err
}

// checkCORS asks as a browser does before a publish of a page, and then sends a request of the
// page.
func (w wayCheck) checkCORS(ctx context.Context) finding {
	if w.origin == w.base.Scheme+"://"+w.base.Host {
		return ok("pages of %s have the same origin as the daemon", w.origin)
	}
	ask := map[string]string{"Access-Control-Request-Method": http.MethodPost, "Access-Control-Request-Headers": "authorization,content-type"}
	for _, method := range []string{http.MethodOptions, http.MethodGet} {
		r, err := http.NewRequestWithContext(ctx, method, w.base.JoinPath("v1/topics/"+w.topic+"/messages").String(), nil)
		if err != nil {
			return failure("", "%v", err)
		}
		for name, value := range ask {
			r.Header.Set(name, value)
		}
		ask = nil // the second request has no such headers
		resp, err := fromPage{w.origin, w.server.http.Transport}.RoundTrip(r)
		if err != nil {
			return failure("let each proxy forward "+method, "%s: %v", method, err)
		}
		resp.Body.Close()
		switch allowed := resp.Header.Values("Access-Control-Allow-Origin"); {
		case len(allowed) > 1:
			return failure("let only the daemon set Access-Control-Allow-Origin: remove it from the proxy", "the answer to %s has Access-Control-Allow-Origin %d times, which browsers refuse", method, len(allowed))
		case len(allowed) == 0 || allowed[0] != "*" && allowed[0] != w.origin:
			return failure("add "+w.origin+" to cors.origins, and let each proxy forward Origin and OPTIONS", "browsers refuse pages of %s: the answer to %s has Access-Control-Allow-Origin %q", w.origin, method, strings.Join(allowed, ", "))
		}
	}
	return ok("browsers let pages of %s use the daemon", w.origin)
}

// refused judges a refusal. Without the right credentials the check is incomplete.
func (w wayCheck) refused(err error, remedy string) finding {
	var p *wire.Problem
	if !errors.As(err, &p) {
		return failure(remedy, "%v", err)
	}
	why := fmt.Sprintf("%s: %s", p.Code, p.Detail)
	if slices.Contains([]wire.Code{wire.CodeUnauthorized, wire.CodeTokenExpired, wire.CodeForbidden}, p.Code) {
		return warning("name a token with --token-file, and a topic that the token may subscribe to with --topic", "not checked: %s", why)
	}
	return failure(cmp.Or(p.Remedy, remedy), "%s", why)
}
