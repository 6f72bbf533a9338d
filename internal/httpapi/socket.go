package httpapi

import (
	"encoding/base64"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsflate"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// openSocket opens a WebSocket. A refusal is an HTTP answer.
func (a *API) openSocket(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	if err := a.checkUpgrade(w.Header(), r); err != nil {
		return a.App.Reject(c, err)
	}
	selected, token, err := subprotocols(r.Header["Sec-Websocket-Protocol"])
	if err == nil && token != "" && c.Authorization != "" {
		err = problem.New(wire.CodeInvalidRequest, "send only one of them", "the request has a token in a subprotocol and an Authorization header")
	}
	deflate := ""
	if err == nil {
		deflate, err = deflateOf(r.Header["Sec-Websocket-Extensions"])
	}
	if err != nil {
		return a.App.Reject(c, err)
	}
	c.Token = token
	asked := request.ConnectOf(r.URL.RawQuery, acceptsOf(r), &c.Credentials)
	o, err := a.App.BeginOpen(r.Context(), c, limit.Sessions, app.OnTopics(asked.Session))
	if err != nil {
		return err
	}
	d, err := o.Connect(asked, "websocket")
	if err != nil {
		return err
	}
	d.Request.Arrival = arrivalOf(r)
	r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"} // the upgrader reads one line of each
	if id := w.Header().Get("X-Request-Id"); id != "" {
		selected.Set("X-Request-Id", id)
	}
	if deflate != "" {
		selected["Sec-WebSocket-Extensions"] = []string{deflate}
	}
	upgrader := ws.HTTPUpgrader{Timeout: headTimeout, Header: selected}
	conn, buffered, _, err := upgrader.Upgrade(r, w)
	if err != nil {
		a.App.End(d.Session)
		if conn != nil {
			conn.Close() // net/http does not own it any more
		}
		return app.ErrClientGone // the upgrader has answered
	}
	if to := w.(*response); to.entry != nil {
		to.entry.Status = http.StatusSwitchingProtocols
		to.endEntry()
	}
	d.Deflates = deflate != ""
	d.Conversation = a.Polls.NewWebSocket(d.Request.Format, d.Deflates, &listen.Owner{Who: c.Who, Conn: listen.Of(conn)}, time.Now())
	d.Request.Format, d.Request.Via = d.Conversation.Format(), transport.ViaWebSocket
	d.Ahead, _ = buffered.Reader.Peek(buffered.Reader.Buffered())
	a.Lane.Carry(observe.Without(r.Context()), conn, d) // its commands are not part of the client's trace
	return nil
}

// subprotocols reads what the client offers (RFC 6455, section 4.2.2). It selects ours, as
// a browser fails a connection where it offered some and none is selected. The offer
// bearer.TOKEN has the credentials of a page, which cannot set headers, and is not selected:
// the answer must not repeat a secret.
func subprotocols(offers []string) (selected http.Header, token string, err error) {
	const ours, bearer = "pubsubd.v1", "bearer."
	selected = http.Header{}
	for offer := range strings.SplitSeq(strings.Join(offers, ","), ",") {
		offer = strings.TrimSpace(offer)
		given, isToken := strings.CutPrefix(offer, bearer)
		switch {
		case offer == ours:
			selected["Sec-WebSocket-Protocol"] = []string{ours}
		case isToken && (token != "" || given == ""):
			return nil, "", problem.New(wire.CodeInvalidRequest, "offer pubsubd.v1 and one bearer.TOKEN", "the subprotocols have more than one token, or an empty token")
		case isToken:
			token = given
		}
	}
	return selected, token, nil
}

// headTimeout is how long the answer that opens a WebSocket may take to write.
const headTimeout = 10 * time.Second

// checkUpgrade returns a problem unless r is a valid upgrade (RFC 6455, section 4.2.1) and
// its page may open a WebSocket.
func (a *API) checkUpgrade(answer http.Header, r *http.Request) error {
	h := r.Header
	upgrades := r.ProtoMajor == 1 && r.ProtoMinor >= 1 && hasToken(h["Connection"], "upgrade") && hasToken(h["Upgrade"], "websocket")
	if !upgrades || !slices.Equal(h["Sec-Websocket-Version"], []string{socketVersion}) {
		answer.Set("Sec-WebSocket-Version", socketVersion) // RFC 6455, section 4.4
		return problem.New(wire.CodeInvalidRequest, "use a WebSocket client, let proxies forward Upgrade and Connection, or use long polling at /v1/poll",
			"the request is not a WebSocket upgrade of version 13 on HTTP/1.1")
	}
	if keys := h["Sec-Websocket-Key"]; len(keys) != 1 || !isSocketKey(keys[0]) {
		return problem.New(wire.CodeInvalidRequest, "use a WebSocket client that follows RFC 6455", "Sec-WebSocket-Key must be 16 bytes in base64, and must come once")
	}
	if a.origins.CheckPage(r) != nil { // clients publish on WebSockets
		return a.errOrigin(r, "open a WebSocket")
	}
	return nil
}

// socketVersion is the version of the WebSocket protocol in RFC 6455.
const socketVersion = "13"

// isSocketKey reports whether key is 16 bytes in base64 (RFC 6455, section 4.1).
func isSocketKey(key string) bool {
	nonce, err := base64.StdEncoding.DecodeString(key)
	return err == nil && len(nonce) == 16
}

// offerGrammar is how RFC 6455, section 9.1, writes an extension. Its values are tokens, in quotes or not.
var offerGrammar = regexp.MustCompile(strings.ReplaceAll(`^\s*T(\s*;\s*T(\s*=\s*(T|"(\\?T)+"))?)*\s*$`, "T", "[-!#$%&'*+.^_`|~0-9A-Za-z]+"))

// deflateOf returns the first offer of permessage-deflate that the server can accept, as the
// client reads it, or "". It declines the others (RFC 7692, section 7.1). An error means that
// the offers cannot be read (RFC 6455, section 9.1).
func deflateOf(offers []string) (accepted string, err error) {
	for offer := range strings.SplitSeq(strings.Join(offers, ","), ",") {
		switch parts := strings.Split(offer, ";"); {
		case strings.TrimSpace(offer) == "": // lists may have empty elements (RFC 9110, section 5.6.1.2)
		case !offerGrammar.MatchString(offer):
			return "", problem.New(wire.CodeInvalidRequest, "offer permessage-deflate as in RFC 7692, or no extension", "Sec-WebSocket-Extensions cannot be read")
		case accepted == "" && strings.TrimSpace(parts[0]) == wsflate.ExtensionName:
			accepted = acceptDeflate(parts[1:])
		}
	}
	return accepted, nil
}

// acceptDeflate accepts an offer of permessage-deflate with these parameters, or returns "". Both
// sides compress each message by itself (RFC 7692, section 7.1.1): a message for many is compressed
// once, and a connection keeps no state. A message for many also has one window, of 2^15 bytes.
func acceptDeflate(parameters []string) string {
	accepted := wsflate.ExtensionName + "; server_no_context_takeover; client_no_context_takeover"
	seen := map[string]bool{}
	for _, parameter := range parameters {
		name, value, _ := strings.Cut(parameter, "=")
		name, value = strings.TrimSpace(name), quotes.Replace(strings.TrimSpace(value))
		ok := !seen[name]
		seen[name] = true
		switch name {
		case "server_no_context_takeover", "client_no_context_takeover":
			ok = ok && value == ""
		case "server_max_window_bits":
			ok = ok && value == "15"
			accepted += "; server_max_window_bits=15"
		case "client_max_window_bits":
			ok = ok && (value == "" || slices.Contains(windowBits, value))
		default:
			ok = false
		}
		if !ok {
			return ""
		}
	}
	return accepted
}

// quotes are what a value in quotes has besides the value.
var quotes = strings.NewReplacer(`"`, "", `\`, "")

// windowBits are the sizes of a window that a client may announce (RFC 7692, section 7.1.2.2).
var windowBits = []string{"8", "9", "10", "11", "12", "13", "14", "15"}

// hasToken reports whether a header's list has a token, ignoring case.
func hasToken(values []string, token string) bool {
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if strings.EqualFold(strings.TrimSpace(part), token) {
			return true
		}
	}
	return false
}
