package pubsub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/gobwas/ws"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	wirecbor "github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A fakeSocket is the daemon's end of a connection that carries frames one way and
// commands the other.
type fakeSocket struct {
	f       *fake
	conn    net.Conn
	session *fakeSession  // guarded by f.mu
	answer  *fakeAnswer   // its again has replies, too; guarded by f.mu
	gone    chan struct{} // closed when the client is

	open func() *wire.Problem         // says why not to begin, if there is a reason
	next func() (wire.Command, error) // reads a command
}

// socketLocked begins a session that is the connection's, and in no book.
func (f *fake) socketLocked(r *http.Request, conn net.Conn, starts []wire.Start, format fakeFormat) *fakeSocket {
	f.opened++
	s := &fakeSocket{f: f, conn: conn, session: &fakeSession{sent: map[string]wire.Position{}}, gone: make(chan struct{}), open: func() *wire.Problem { return nil }}
	f.sockets = append(f.sockets, s.session)
	f.subscribeLocked(s.session, starts)
	a := &fakeAnswer{f: f, w: connWriter{conn}, r: r, breaks: f.breaks, left: f.cut(len(f.polls)), replaced: s.gone, ended: &s.session.ended, format: format}
	f.polls = append(f.polls, fakePoll{method: r.Method, at: time.Now()})
	a.take = func(limit int) []wire.Content { return f.takeLocked(s.session.order, s.session.sent, limit) }
	a.hello = func() *wire.Hello {
		return &wire.Hello{Positions: f.positionsLocked(s.session.order, s.session.sent), Limits: &f.limits, ExpiresMS: f.expires}
	}
	s.answer = a
	return s
}

// serve serves the connection until its end, however it comes.
func (s *fakeSocket) serve() {
	ctx, cancel := context.WithCancel(context.Background())
	s.answer.r = s.answer.r.WithContext(ctx)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer cancel()
		s.obey()
	}()
	defer func() {
		_ = recover() // what ends an answer of HTTP
		s.conn.Close()
		<-read
	}()
	if p := s.open(); p != nil {
		_, _ = s.conn.Write(s.answer.format.encode(wire.Content{End: p}))
		return
	}
	s.answer.serveStream()
}

// obey takes commands until the client is gone.
func (s *fakeSocket) obey() {
	for {
		c, err := s.next()
		if err != nil {
			return
		}
		if reply := s.reply(c); reply != nil {
			s.f.set(func() {
				s.answer.again = append(s.answer.again, wire.Content{Reply: reply})
				s.f.changedLocked()
			})
		}
	}
}

// reply makes a change. A script of the test's answers as if it had come as a PATCH;
// if it breaks the connection, or never answers, there is no reply.
func (s *fakeSocket) reply(c wire.Command) (reply *wire.Reply) {
	defer func() {
		if recover() != nil {
			s.conn.Close()
		}
	}()
	request := httptest.NewRequestWithContext(s.answer.r.Context(), http.MethodPatch, "/v1/ws", http.NoBody)
	if problem, answered := s.f.scripted(request); answered {
		return &wire.Reply{Ref: c.Ref, Problem: problem}
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.patches++
	return s.changeLocked(c)
}

// scripted has the test's script answer a request that is none of HTTP; what is not a
// problem breaks the connection.
func (f *fake) scripted(r *http.Request) (p *wire.Problem, answered bool) {
	f.mu.Lock()
	script := f.script
	f.mu.Unlock()
	answer := httptest.NewRecorder()
	if script == nil || !script(answer, r) {
		return nil, false
	}
	if json.Unmarshal(answer.Body.Bytes(), &p) != nil {
		panic(http.ErrAbortHandler)
	}
	return p, true
}

func (s *fakeSocket) changeLocked(c wire.Command) *wire.Reply {
	for _, topic := range c.Unsubscribe {
		s.session.order = slices.DeleteFunc(s.session.order, func(t string) bool { return t == topic })
		delete(s.session.sent, topic)
	}
	return &wire.Reply{Ref: c.Ref, Positions: s.f.subscribeLocked(s.session, c.Subscribe)}
}

// connWriter makes a connection what a fakeAnswer writes to.
type connWriter struct{ net.Conn }

func (connWriter) Header() http.Header { return http.Header{} }
func (connWriter) WriteHeader(int)     {}

// serveWebSocket is the daemon's /v1/ws.
func (f *fake) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	starts, err := startsOf(r)
	if err != nil {
		refuse(w, problem.New(wire.CodeInvalidTopic, "", "%v", err))
		return
	}
	conn, buffered, _, err := ws.UpgradeHTTP(r, w)
	if err != nil {
		return
	}
	f.mu.Lock()
	format := Format(cmp.Or(r.FormValue("format"), "json"))
	s := f.socketLocked(r, conn, starts, webSocketFormat(format))
	f.mu.Unlock()
	s.next = func() (wire.Command, error) { return s.nextMessage(buffered, format) }
	s.serve()
}

func startsOf(r *http.Request) (starts []wire.Start, err error) {
	for _, text := range r.URL.Query()["topic"] {
		start, err := wire.ParseStart(text)
		if err != nil {
			return nil, err
		}
		starts = append(starts, start)
	}
	return starts, nil
}

var errClosed = errors.New("the client has said good-bye")

func (s *fakeSocket) nextMessage(r io.Reader, format Format) (wire.Command, error) {
	for {
		code, payload, err := readMasked(r)
		switch {
		case err != nil:
			return wire.Command{}, err
		case code == ws.OpClose:
			s.f.set(func() { s.f.goodbyes++ })
			return wire.Command{}, errClosed
		case code == ws.OpPong:
			s.f.set(func() { s.f.pongs++ })
		case code == format.message():
			if format == CBOR {
				payload = wirecbor.AppendJSON(nil, payload)
			}
			var c wire.Command
			return c, json.Unmarshal(payload, &c)
		}
	}
}

// readMasked reads what a client sent, which has to be masked.
func readMasked(r io.Reader) (ws.OpCode, []byte, error) {
	head, err := ws.ReadHeader(r)
	if err == nil {
		err = ws.CheckHeader(head, ws.StateServerSide)
	}
	if err != nil {
		return 0, nil, err
	}
	payload := make([]byte, head.Length)
	_, err = io.ReadFull(r, payload)
	ws.Cipher(payload, head.Mask, 0)
	return head.OpCode, payload, err
}

// serveTCP is the daemon's TCP port.
func (f *fake) serveTCP(conn net.Conn) {
	defer conn.Close()
	items := cbor.NewDecoder(conn)
	var request wire.OpenRequest
	if decodeItem(items, &request) != nil {
		return
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/tcp", http.NoBody)
	f.mu.Lock()
	s := f.socketLocked(r, conn, nil, fakeFormat{encode: item})
	f.mu.Unlock()
	s.next = func() (c wire.Command, err error) { return c, decodeItem(items, &c) }
	s.open = func() *wire.Problem {
		p, _ := f.scripted(s.answer.r)
		f.set(func() { f.subscribeLocked(s.session, request.Topics) })
		return p
	}
	s.serve()
}

func decodeItem(items *cbor.Decoder, into any) error {
	var item cbor.RawMessage
	if err := items.Decode(&item); err != nil {
		return err
	}
	return json.Unmarshal(wirecbor.AppendJSON(nil, item), into)
}
