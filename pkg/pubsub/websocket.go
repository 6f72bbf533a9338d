package pubsub

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455, section 1.3; it keeps no secret
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gobwas/ws"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// errNoUpgrade is a connection that became a WebSocket, and cannot be written to.
var errNoUpgrade = errors.New("the HTTP client's transport does not let a WebSocket be written to: the Body of its answer must be an io.Writer")

// dialWebSocket connects, and tells whether the URL asked for starts: it does if they
// fit and it can say them.
//
// The handshake is a request like any other, so that all that WithHTTPClient brings
// counts: proxies, TLS, cookies, a RoundTripper that authorises. What it brings must
// leave the answer's Body a Writer.
func (c *Client) dialWebSocket(ctx context.Context, o subscribeOptions, starts []wire.Start) (l link, asked bool, err error) {
	query, asked := webSocketQuery(o, starts)
	req, err := c.request(ctx, http.MethodGet, "v1/ws", query, nil)
	if err != nil {
		return nil, false, err
	}
	key := webSocketKey()
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "websocket")
	req.Header.Set("Sec-WebSocket-Version", "13")
	req.Header.Set("Sec-WebSocket-Key", key)
	resp, err := c.send(req, http.StatusSwitchingProtocols)
	if err != nil {
		return nil, false, err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	switch {
	case !ok:
		resp.Body.Close()
		return nil, false, &hopelessError{errNoUpgrade}
	case !upgraded(resp.Header, key):
		conn.Close()
		return nil, false, unexpected(resp.StatusCode, "to another WebSocket handshake")
	}
	return &webSocket{conn: conn, format: o.format}, asked, nil
}

func webSocketQuery(o subscribeOptions, starts []wire.Start) (_ url.Values, asked bool) {
	query, full := url.Values{}, url.Values{}
	for _, q := range []url.Values{query, full} {
		leaveOut(q, o.except)
		if o.format != JSON {
			q.Set("format", string(o.format))
		}
	}
	for _, start := range starts {
		full.Add("topic", start.String())
	}
	paced := slices.ContainsFunc(starts, func(s wire.Start) bool { return s.Every > 0 })
	if paced || len(full.Encode()) > maxQueryBytes {
		return query, false
	}
	return full, true
}

// webSocketKey returns what a proxy with the answer to another handshake cannot know.
func webSocketKey() string {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	return base64.StdEncoding.EncodeToString(nonce)
}

// upgraded reports whether the answer's head is that of a WebSocket (RFC 6455, section
// 4.1). We offer no extension or protocol, and want none.
func upgraded(h http.Header, key string) bool {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return strings.EqualFold(h.Get("Upgrade"), "websocket") &&
		h.Get("Sec-WebSocket-Accept") == base64.StdEncoding.EncodeToString(sum[:]) &&
		h.Get("Sec-WebSocket-Extensions") == "" && h.Get("Sec-WebSocket-Protocol") == ""
}

// A webSocket is the client's end of a WebSocket (RFC 6455). A frame of pubsubd is one
// message in it; "frame" is our word, and its frames are called so nowhere else.
type webSocket struct {
	conn   io.ReadWriteCloser
	format Format // immutable

	mu sync.Mutex // held to write
}

func (w *webSocket) Read(p []byte) (int, error) { return w.conn.Read(p) }

func (w *webSocket) decoder(r io.Reader) decoder {
	return w.format.decoder(&webSocketReader{link: w, conn: bufio.NewReader(r), kind: w.format.message()})
}

// message returns the kind of message that has frames or commands in the format.
func (f Format) message() ws.OpCode {
	if f == CBOR {
		return ws.OpBinary
	}
	return ws.OpText
}

func (w *webSocket) send(ctx context.Context, c wire.Command) error {
	payload, err := w.format.encode(c)
	if err != nil {
		return err
	}
	return w.write(ctx, w.format.message(), payload)
}

// write writes one message, masked (section 5.3), and closes the connection if it
// cannot.
func (w *webSocket) write(ctx context.Context, kind ws.OpCode, payload []byte) error {
	frame, err := ws.CompileFrame(ws.MaskFrame(ws.NewFrame(kind, true, payload)))
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writeLocked(ctx, frame)
}

func (w *webSocket) writeLocked(ctx context.Context, frame []byte) error {
	defer context.AfterFunc(ctx, func() { w.conn.Close() })()
	if _, err := w.conn.Write(frame); err != nil {
		w.conn.Close() // half of a frame may be out
		return whyFailed(ctx, err)
	}
	return nil
}

// goodbyeTimeout bounds the close frame, of a few bytes: they wait only if the daemon
// has taken nothing for long.
const goodbyeTimeout = 100 * time.Millisecond

// Close says good-bye, unless that had to wait.
func (w *webSocket) Close() {
	if w.mu.TryLock() {
		defer w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
		defer cancel()
		_ = w.writeLocked(ctx, closeFrame()) // it may be too late for it
	}
	w.conn.Close()
}

func closeFrame() []byte {
	return ws.MustCompileFrame(ws.MaskFrame(ws.NewCloseFrame(ws.NewCloseFrameBody(ws.StatusNormalClosure, ""))))
}

// A webSocketReader reads the daemon's messages, one after the other, as if they were one:
// frames tell themselves where they end, so messages, and the parts that one may come in,
// need not. It answers pings. It is for one goroutine.
type webSocketReader struct {
	link  *webSocket
	conn  *bufio.Reader // of link, at some remove
	kind  ws.OpCode     // of messages
	state ws.State
	left  int64 // bytes of the part that is being read
}

func (r *webSocketReader) Read(p []byte) (int, error) {
	for r.left == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n, err := r.conn.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	return n, whole(err)
}

// whole makes an end that comes too early one.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next reads up to the next part of a message. A connection that ends between two is
// at its end, however it ends: only an end frame says more.
func (r *webSocketReader) next() error {
	head, err := ws.ReadHeader(r.conn)
	if err != nil {
		return err
	}
	if err := ws.CheckHeader(head, r.state.Set(ws.StateClientSide)); err != nil {
		return fmt.Errorf("WebSocket: %w", err)
	}
	switch head.OpCode {
	case r.kind, ws.OpContinuation:
	case ws.OpText, ws.OpBinary:
		return errOtherKind
	default:
		return r.control(head)
	}
	r.left, r.state = head.Length, r.state.Set(ws.StateFragmented)
	if head.Fin {
		r.state = r.state.Clear(ws.StateFragmented)
	}
	return nil
}

var errOtherKind = errors.New("a WebSocket message is text but should be binary, or binary but should be text")

// control reads what is not a message; CheckHeader has bounded it.
func (r *webSocketReader) control(head ws.Header) error {
	payload := make([]byte, head.Length)
	if _, err := io.ReadFull(r.conn, payload); err != nil {
		return whole(err)
	}
	switch head.OpCode {
	case ws.OpPing:
		return r.link.pong(payload)
	case ws.OpClose:
		return io.EOF
	}
	return nil
}

// pong answers a ping. If it cannot be written the connection is of no more use.
func (w *webSocket) pong(payload []byte) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), requestTimeout, errSilent)
	defer cancel()
	if err := w.write(ctx, ws.OpPong, payload); err != nil {
		return &readError{err}
	}
	return nil
}

// tellPresence sends a pong to no ping (RFC 6455, section 5.5.3). If it cannot be
// written the connection has been closed, as who reads it will find.
func (w *webSocket) tellPresence() { _ = w.pong(nil) }
