package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/gobwas/httphead"
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
	if err := a.checkUpgrade(r); err != nil {
		return a.App.Reject(c, err)
	}
	selected, token, err := subprotocols(r.Header["Sec-Websocket-Protocol"])
	if err == nil && token != "" && c.Authorization != "" {
		err = problem.New(wire.CodeInvalidRequest, "send only one of them", "the request has a token in a subprotocol and an Authorization header")
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
	compression := wsflate.Extension{Parameters: withoutContext}
	upgrader := ws.HTTPUpgrader{Timeout: headTimeout, Negotiate: compression.Negotiate, Header: selected}
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
	_, compressed := compression.Accepted()
	d.Conversation = a.Polls.NewWebSocket(d.Request.Format, compressed, &listen.Owner{Who: c.Who, Conn: listen.Of(conn)}, time.Now())
	d.Request.Format, d.Request.Via, d.Deflates = d.Conversation.Format(), transport.ViaWebSocket, compressed
	d.Ahead, _ = buffered.Reader.Peek(buffered.Reader.Buffered())
	a.Lane.Carry(observe.Without(r.Context()), conn, d) // its commands are not part of the client's trace
	return nil
}

// withoutContext is compression of each message by itself (RFC 7692, section 7.1.1): a
// message for many is compressed once, and a connection keeps no state.
var withoutContext = wsflate.Parameters{ServerNoContextTakeover: true, ClientNoContextTakeover: true}

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
func (a *API) checkUpgrade(r *http.Request) error {
	h := r.Header
	upgrades := r.ProtoMajor == 1 && r.ProtoMinor >= 1 && hasToken(h["Connection"], "upgrade") && hasToken(h["Upgrade"], "websocket")
	if !upgrades || len(h.Get("Sec-WebSocket-Key")) != socketKeyLength || h.Get("Sec-WebSocket-Version") != "13" {
		return problem.New(wire.CodeInvalidRequest, "use a WebSocket client, let proxies forward Upgrade and Connection, or use long polling at /v1/poll",
			"the request is not a WebSocket upgrade of version 13 on HTTP/1.1")
	}
	if err := checkExtensions(h["Sec-Websocket-Extensions"]); err != nil {
		return err
	}
	if a.origins.CheckPage(r) != nil { // clients publish on WebSockets
		return a.errOrigin(r, "open a WebSocket")
	}
	return nil
}

// checkExtensions returns a problem unless the offered extensions can be read: the
// upgrader would answer 500.
func checkExtensions(offers []string) error {
	var compression wsflate.Extension
	for _, offer := range offers {
		options, ok := httphead.ParseOptions([]byte(offer), nil)
		for _, option := range options {
			_, err := compression.Negotiate(option)
			ok = ok && err == nil
		}
		if !ok {
			return problem.New(wire.CodeInvalidRequest, "offer permessage-deflate as in RFC 7692, or no extension", "Sec-WebSocket-Extensions cannot be read")
		}
	}
	return nil
}

// socketKeyLength is the length of 16 bytes in base64.
const socketKeyLength = 24

// hasToken reports whether a header's list has a token, ignoring case.
func hasToken(values []string, token string) bool {
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if strings.EqualFold(strings.TrimSpace(part), token) {
			return true
		}
	}
	return false
}
