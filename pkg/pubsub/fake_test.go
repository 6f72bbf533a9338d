package pubsub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A fake is a daemon as PROTOCOL.md describes it, small and without care for speed,
// that can be made to fail: answers cut at a byte, requests answered by a script,
// connections refused.
type fake struct {
	mux *http.ServeMux // immutable

	mu       sync.Mutex
	news     chan struct{} // closed, and replaced, when anything changed
	epoch    string
	topics   map[string]*fakeTopic
	sessions map[string]*fakeSession
	sockets  []*fakeSession // every one there ever was
	goodbyes int            // said by sockets' clients
	pongs    int
	opened   int
	polls    []fakePoll
	patches  int
	stale    int // polls with an ack that was too low
	limits   wire.Limits
	expires  int64         // expires_ms of all credentials; 0: not told
	endsWith *wire.Problem // of ended sessions

	cut    func(poll int) int                                // bytes of the body that get through; negative: all
	script func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	breaks int                                               // every answer under way that began at a lower number breaks off
	muted  bool                                              // answers under way say nothing more and stay open
	down   bool                                              // refuse connections
	dials  int                                               // connections asked for
}

// A fakePoll is what one poll asked for, and when.
type fakePoll struct {
	ack    string
	method string
	topics []string
	at     time.Time
}

type fakeTopic struct {
	before   uint64 // the highest offset that is no longer held
	messages []*wire.Message
}

type fakeSession struct {
	order   []string
	sent    map[string]wire.Position
	acked   uint64
	unacked []wire.Content
	ended   bool
	parked  chan struct{} // closed when a newer poll comes
}

func newFake() *fake {
	f := &fake{
		news:     make(chan struct{}),
		epoch:    "k3",
		topics:   map[string]*fakeTopic{},
		sessions: map[string]*fakeSession{},
		limits: wire.Limits{PollTimeoutMS: 25_000, HeartbeatMS: 15_000, InactivityTimeoutMS: 60_000, MaxOutputDelayMS: 200,
			AnswerFrames: 1000, AnswerBytes: 1 << 20, Queue: 32, Unacked: 1024, Subscriptions: 1000, MessageBytes: 64 << 10},
		endsWith: problem.New(wire.CodeSessionEnded, "", "it was inactive"),
		cut:      func(int) int { return -1 },
	}
	f.mux = f.newMux()
	return f
}

// changedLocked wakes whoever waits for news.
func (f *fake) changedLocked() {
	close(f.news)
	f.news = make(chan struct{})
}

func (f *fake) topicLocked(name string) *fakeTopic {
	if f.topics[name] == nil {
		f.topics[name] = &fakeTopic{}
	}
	return f.topics[name]
}

// publish adds messages whose payloads are their own offsets.
func (f *fake) publish(topic string, n int) {
	for range n {
		f.add(topic, wire.Message{})
	}
}

func (f *fake) add(topic string, m wire.Message) wire.Published {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topicLocked(topic)
	m.Position = f.headLocked(topic)
	m.Position.Offset++
	m.Time = 1_700_000_000_000
	if m.Data == nil {
		m.Data = strconv.AppendUint(nil, m.Position.Offset, 10)
	}
	t.messages = append(t.messages, &m)
	f.changedLocked()
	return wire.Published{Position: m.Position, Time: m.Time}
}

func (f *fake) headLocked(topic string) wire.Position {
	t := f.topicLocked(topic)
	return wire.Position{Topic: topic, Epoch: f.epoch, Offset: t.before + uint64(len(t.messages))}
}

// evict forgets the oldest n messages of a topic.
func (f *fake) evict(topic string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topicLocked(topic)
	t.messages = t.messages[n:]
	t.before += uint64(n)
}

// restart loses everything, as a crash does.
func (f *fake) restart(epoch string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epoch = epoch
	f.topics = map[string]*fakeTopic{}
	f.sessions = map[string]*fakeSession{}
	f.changedLocked()
}

func (f *fake) endSessions() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		s.ended = true
	}
	for _, s := range f.sockets {
		s.ended = true
	}
	f.changedLocked()
}

// breakOff cuts every answer under way.
func (f *fake) breakOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.breaks++
	f.changedLocked()
}

// goDown refuses connections, and cuts those there are.
func (f *fake) goDown() {
	f.set(func() {
		f.down = true
		f.script = func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	})
	f.breakOff()
}

// mute leaves every answer under way open and silent, and answers nothing any more.
func (f *fake) mute() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.muted = true
	f.script = hang
	f.changedLocked()
}

// hang is a script that never answers. The server notices that the client has left
// only once the body has been read.
func hang(_ http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
	return true
}

// holdUp keeps an answer back for d.
func holdUp(r *http.Request, d time.Duration) {
	ctx, cancel := context.WithTimeout(r.Context(), d)
	defer cancel()
	<-ctx.Done()
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// seen returns the polls so far.
func (f *fake) seen() []fakePoll {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.polls)
}

func (f *fake) startLocked(start wire.Start) wire.Position {
	switch start.From {
	case wire.FromPosition:
		return start.Position()
	case wire.FromOldest:
		return wire.Position{Topic: start.Topic, Epoch: f.epoch, Offset: f.topicLocked(start.Topic).before}
	}
	head := f.headLocked(start.Topic)
	if start.From == wire.FromNewest {
		head.Offset -= min(uint64(start.Newest), uint64(len(f.topicLocked(start.Topic).messages)))
	}
	return head
}

// nextLocked returns what comes after a position: a gap, a message, or nothing.
func (f *fake) nextLocked(at wire.Position) wire.Content {
	t, head := f.topicLocked(at.Topic), f.headLocked(at.Topic)
	oldest := wire.Position{Topic: at.Topic, Epoch: f.epoch, Offset: t.before}
	switch {
	case at.Epoch != f.epoch || at.Offset > head.Offset:
		return wire.Content{Gap: &wire.Gap{Topic: at.Topic, Reason: wire.GapRestarted, After: at, Position: oldest}}
	case at.Offset < t.before:
		return wire.Content{Gap: &wire.Gap{Topic: at.Topic, Reason: wire.GapEvicted, After: at, Position: oldest}}
	case at == head:
		return wire.Content{}
	}
	return wire.Content{Message: t.messages[at.Offset-t.before]}
}

// takeLocked moves the positions over what is there, at most limit frames.
func (f *fake) takeLocked(order []string, sent map[string]wire.Position, limit int) []wire.Content {
	var taken []wire.Content
	for _, topic := range order {
		for len(taken) < limit {
			c := f.nextLocked(sent[topic])
			if !c.Counts() {
				break
			}
			sent[topic] = Item{c.Message, c.Gap}.Position()
			taken = append(taken, c)
		}
	}
	return taken
}

// ServeHTTP is the daemon's /v1.
func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	script := f.script
	f.mu.Unlock()
	if script != nil && script(w, r) {
		return
	}
	f.route(w, r)
}

func (f *fake) route(w http.ResponseWriter, r *http.Request) { f.mux.ServeHTTP(w, r) }

// newMux has the fake's routes. They are made once, since each is some work.
func (f *fake) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/topics/{topic}/messages", f.servePublish)
	mux.HandleFunc("POST /v1/messages", f.serveMany)
	mux.HandleFunc("POST /v1/sessions", f.serveOpen)
	mux.HandleFunc("PATCH /v1/sessions/{id}", f.servePatch)
	mux.HandleFunc("DELETE /v1/sessions/{id}", f.serveDelete)
	mux.HandleFunc("GET /v1/sessions/{id}/poll", f.servePoll)
	mux.HandleFunc("/v1/poll", f.serveStateless)
	mux.HandleFunc("GET /v1/sse", f.serveEvents)
	mux.HandleFunc("GET /v1/ws", f.serveWebSocket)
	return mux
}

func refuse(w http.ResponseWriter, p *wire.Problem) {
	w.Header().Set("Content-Type", wire.ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

func (f *fake) servePublish(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	query := r.URL.Query()
	m := wire.Message{Data: body, Key: query.Get("key"), Client: query.Get("client")}
	if m.Type = r.Header.Get("Content-Type"); m.Type == jsonType {
		m.Type = ""
	}
	if key := r.Header.Get("Idempotency-Key"); key != "" {
		if m.ID, err = strconv.Unquote(key); err != nil {
			refuse(w, problem.New(wire.CodeInvalidRequest, "", "%v", err))
			return
		}
	}
	_ = json.NewEncoder(w).Encode(f.addOnce(r.PathValue("topic"), m))
}

// addOnce is add, but for a message whose ID the topic holds.
func (f *fake) addOnce(topic string, m wire.Message) wire.Published {
	f.mu.Lock()
	for _, held := range f.topicLocked(topic).messages {
		if m.ID != "" && held.ID == m.ID {
			defer f.mu.Unlock()
			return wire.Published{Position: held.Position, Time: held.Time}
		}
	}
	f.mu.Unlock()
	return f.add(topic, m)
}

// serveMany refuses what is published to topics named refused.
func (f *fake) serveMany(w http.ResponseWriter, r *http.Request) {
	var items []wire.PublishItem
	if err := json.NewDecoder(r.Body).Decode(&items); err != nil {
		refuse(w, problem.New(wire.CodeInvalidRequest, "", "%v", err))
		return
	}
	results := make([]wire.PublishResult, len(items))
	for i, item := range items {
		if item.Topic == "refused" {
			results[i].Problem = problem.New(wire.CodeForbidden, "", "refused")
			continue
		}
		m := wire.Message{Type: item.Type, Data: item.Data, Key: item.Key}
		switch {
		case item.Text != nil:
			m.Data = []byte(*item.Text)
		case item.Base64 != nil:
			m.Data = *item.Base64
		}
		if item.Client != nil {
			m.Client = *item.Client
		}
		if item.ID != nil {
			m.ID = *item.ID
		}
		published := f.addOnce(item.Topic, m)
		results[i].Published = &published
	}
	_ = json.NewEncoder(w).Encode(results)
}

func (f *fake) serveOpen(w http.ResponseWriter, r *http.Request) {
	var request wire.OpenRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		refuse(w, problem.New(wire.CodeInvalidRequest, "", "%v", err))
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	id := fmt.Sprintf("session-%d", f.opened)
	s := &fakeSession{sent: map[string]wire.Position{}}
	f.sessions[id] = s
	answer := wire.SessionOpened{Session: id, Ack: true, Limits: f.limits, ExpiresMS: f.expires, Positions: f.subscribeLocked(s, request.Topics)}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(answer)
}

func (f *fake) subscribeLocked(s *fakeSession, starts []wire.Start) []wire.Position {
	positions := []wire.Position{}
	for _, start := range starts {
		if _, present := s.sent[start.Topic]; !present {
			s.order = append(s.order, start.Topic)
			s.sent[start.Topic] = f.startLocked(start)
		}
		positions = append(positions, s.sent[start.Topic])
	}
	f.changedLocked()
	return positions
}

func (f *fake) sessionLocked(id string) (*fakeSession, *wire.Problem) {
	s := f.sessions[id]
	switch {
	case s == nil:
		return nil, problem.New(wire.CodeSessionUnknown, "", "no such session")
	case s.ended:
		return nil, problem.New(wire.CodeSessionEnded, "", "it was inactive")
	}
	return s, nil
}

func (f *fake) servePatch(w http.ResponseWriter, r *http.Request) {
	var request wire.ChangeRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		refuse(w, problem.New(wire.CodeInvalidRequest, "", "%v", err))
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.patches++
	s, p := f.sessionLocked(r.PathValue("id"))
	if p != nil {
		refuse(w, p)
		return
	}
	for _, topic := range request.Remove {
		s.order = slices.DeleteFunc(s.order, func(t string) bool { return t == topic })
		delete(s.sent, topic)
	}
	_ = json.NewEncoder(w).Encode(wire.SessionChanged{Positions: f.subscribeLocked(s, request.Add)})
}

func (f *fake) serveDelete(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sessions, r.PathValue("id"))
	f.changedLocked()
	w.WriteHeader(http.StatusNoContent)
}

// ackLocked keeps the rule of acks.
func (s *fakeSession) ackLocked(text string) *wire.Problem {
	ack, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err != nil:
		return problem.New(wire.CodeInvalidRequest, "", "%v", err)
	case ack < s.acked:
		return problem.New(wire.CodeStaleAck, "", "ack %d is below %d", ack, s.acked)
	case ack > s.acked+uint64(len(s.unacked)):
		return problem.New(wire.CodeAckBeyondSent, "", "ack %d", ack)
	}
	s.unacked = s.unacked[ack-s.acked:]
	s.acked = ack
	return nil
}

func (f *fake) servePoll(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	cut := f.cut(len(f.polls))
	f.polls = append(f.polls, fakePoll{ack: r.FormValue("ack"), method: r.Method, at: time.Now()})
	s, p := f.sessionLocked(r.PathValue("id"))
	if p == nil {
		p = s.ackLocked(r.FormValue("ack"))
	}
	if p != nil {
		if p.Code == wire.CodeStaleAck {
			f.stale++
		}
		f.mu.Unlock()
		refuse(w, p)
		return
	}
	if s.parked != nil {
		close(s.parked)
	}
	s.parked = make(chan struct{})
	a := &fakeAnswer{f: f, w: w, r: r, breaks: f.breaks, left: cut, replaced: s.parked, ended: &s.ended, format: formatOf(r)}
	a.again = s.unacked
	mode := Mode(cmp.Or(r.FormValue("mode"), "batch"))
	a.take = func(limit int) []wire.Content {
		fresh := f.takeLocked(s.order, s.sent, limit)
		if mode == Stream {
			s.acked += uint64(len(fresh)) // as written
		} else {
			s.unacked = append(s.unacked, fresh...)
		}
		return fresh
	}
	a.hello = func() *wire.Hello {
		return &wire.Hello{Positions: f.positionsLocked(s.order, s.sent), Limits: &f.limits, ExpiresMS: f.expires}
	}
	f.mu.Unlock()
	a.serve(mode, false)
}

func (f *fake) positionsLocked(order []string, sent map[string]wire.Position) []wire.Position {
	positions := []wire.Position{}
	for _, topic := range order {
		positions = append(positions, sent[topic])
	}
	return positions
}

func (f *fake) serveStateless(w http.ResponseWriter, r *http.Request) {
	if a, atOnce := f.stateless(w, r); a != nil {
		a.serve(Mode(cmp.Or(r.FormValue("mode"), "batch")), atOnce)
	}
}

// stateless returns the answer to a poll that names all topics, or nil if it was
// refused, and whether it is to begin at once.
func (f *fake) stateless(w http.ResponseWriter, r *http.Request) (a *fakeAnswer, atOnce bool) {
	var request wire.OpenRequest
	for _, text := range r.URL.Query()["topic"] {
		start, err := wire.ParseStart(text)
		if err != nil {
			refuse(w, problem.New(wire.CodeInvalidTopic, "", "%v", err))
			return nil, false
		}
		request.Topics = append(request.Topics, start)
	}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			refuse(w, problem.New(wire.CodeInvalidRequest, "", "%v", err))
			return nil, false
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	poll := fakePoll{method: r.Method, at: time.Now()}
	order, sent := []string{}, map[string]wire.Position{}
	for _, start := range request.Topics {
		poll.topics = append(poll.topics, start.String())
		order = append(order, start.Topic)
		sent[start.Topic] = f.startLocked(start)
		atOnce = atOnce || start.From != wire.FromPosition
	}
	a = &fakeAnswer{f: f, w: w, r: r, breaks: f.breaks, left: f.cut(len(f.polls)), format: formatOf(r)}
	f.polls = append(f.polls, poll)
	a.take = func(limit int) []wire.Content { return f.takeLocked(order, sent, limit) }
	a.hello = func() *wire.Hello {
		return &wire.Hello{Positions: f.positionsLocked(order, sent), Limits: &f.limits, ExpiresMS: f.expires}
	}
	return a, atOnce
}

// A fakeAnswer writes one poll's answer.
type fakeAnswer struct {
	f        *fake
	w        http.ResponseWriter // or what stands for one
	r        *http.Request
	breaks   int
	left     int // bytes that still get through; negative: all
	again    []wire.Content
	take     func(limit int) []wire.Content // f.mu is held
	hello    func() *wire.Hello             // f.mu is held
	replaced chan struct{}
	ended    *bool
	format   fakeFormat
}

var errPollEnded = errors.New("the poll's time is over")

// wait returns frames as soon as there are any; none after d.
func (a *fakeAnswer) wait(limit int, d time.Duration) ([]wire.Content, error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		a.f.mu.Lock()
		ended, muted, broken := a.ended != nil && *a.ended, a.f.muted, a.breaks < a.f.breaks
		if muted || broken {
			a.f.mu.Unlock()
			if broken {
				panic(http.ErrAbortHandler)
			}
			<-a.r.Context().Done()
			return nil, a.r.Context().Err()
		}
		frames := a.again[:min(limit, len(a.again))]
		a.again = a.again[len(frames):]
		if len(frames) < limit && !ended {
			frames = append(slices.Clone(frames), a.take(limit-len(frames))...)
		}
		news := a.f.news
		a.f.mu.Unlock()
		switch {
		case ended:
			return nil, a.f.endsWith
		case len(frames) > 0:
			return frames, nil
		}
		select {
		case <-news:
		case <-timer.C:
			return nil, errPollEnded
		case <-a.r.Context().Done():
			return nil, a.r.Context().Err()
		case <-a.replaced:
			return nil, problem.New(wire.CodePollReplaced, "", "by a newer one")
		}
	}
}

func line(c wire.Content) []byte { return c.AppendJSON(nil) }

// write lets through what may, then breaks the connection.
func (a *fakeAnswer) write(b []byte) {
	if a.left < 0 {
		_, _ = a.w.Write(b)
		return
	}
	n := min(a.left, len(b))
	_, _ = a.w.Write(b[:n])
	if a.left -= n; a.left == 0 {
		_ = http.NewResponseController(a.w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func (a *fakeAnswer) flush(c wire.Content) {
	a.write(a.format.encode(c))
	_ = http.NewResponseController(a.w).Flush()
}

func (a *fakeAnswer) serve(mode Mode, atOnce bool) {
	a.w.Header().Set("Content-Type", a.format.contentType)
	switch mode {
	case Stream:
		a.serveStream()
	case Multiple:
		a.serveMultiple(atOnce)
	case Single:
		a.serveWhole(1, atOnce)
	default:
		a.serveWhole(a.f.limits.AnswerFrames, atOnce)
	}
}

func (a *fakeAnswer) helloContent() wire.Content {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	return wire.Content{Hello: a.hello()}
}

func (a *fakeAnswer) serveWhole(limit int, atOnce bool) {
	held := a.f.limits.PollTimeout()
	hello := wire.Content{}
	if atOnce {
		held, hello = 0, a.helloContent()
	}
	frames, err := a.wait(limit, held)
	if p := (*wire.Problem)(nil); errors.As(err, &p) {
		refuse(a.w, p)
		return
	}
	var body []byte
	if atOnce {
		hello.Hello.Frames = new(len(frames))
		body = a.format.encode(hello)
	}
	for _, c := range frames {
		body = append(body, a.format.encode(c)...)
	}
	a.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	a.write(body)
}

func (a *fakeAnswer) serveMultiple(atOnce bool) {
	held := a.f.limits.PollTimeout()
	if atOnce {
		held = 0
		a.flush(a.helloContent())
	}
	for began := atOnce; ; began = true {
		frames, err := a.wait(1, held)
		p := (*wire.Problem)(nil)
		switch {
		case errors.As(err, &p) && began:
			a.flush(wire.Content{End: p})
			return
		case errors.As(err, &p):
			refuse(a.w, p)
			return
		case err != nil:
			return
		}
		a.flush(frames[0])
		held = time.Duration(a.f.limits.MaxOutputDelayMS) * time.Millisecond
	}
}

func (a *fakeAnswer) serveStream() {
	a.flush(a.helloContent())
	for {
		frames, err := a.wait(100, a.f.limits.Heartbeat())
		p := (*wire.Problem)(nil)
		switch {
		case errors.As(err, &p):
			a.flush(wire.Content{End: p})
			return
		case errors.Is(err, errPollEnded):
			a.flush(wire.Content{})
		case err != nil:
			return
		}
		for _, c := range frames {
			a.flush(c)
		}
	}
}

// A pipeNet is a network of one address, in memory, so that a bubble of synctest
// holds all of it.
type pipeNet struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeNet() *pipeNet {
	return &pipeNet{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (p *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeNet) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipeNet) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (p *pipeNet) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// acceptTCP serves the TCP port until it is closed, and every connection to its end.
func (f *fake) acceptTCP(port net.Listener) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		var conns sync.WaitGroup
		defer conns.Wait()
		for {
			conn, err := port.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { f.serveTCP(conn) })
		}
	}()
	return done
}

// serveFake returns a client of f. Both end with the test, inside its bubble.
func serveFake(t *testing.T, f *fake, opts ...Option) *Client {
	network, port := newPipeNet(), newPipeNet()
	ported := f.acceptTCP(port)
	server := &http.Server{Handler: f, ReadHeaderTimeout: time.Hour}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(network)
	}()
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		f.mu.Lock()
		down := f.down
		f.dials++
		f.mu.Unlock()
		switch {
		case down:
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		case addr == "daemon:8082":
			return port.dial(ctx)
		}
		return network.dial(ctx)
	}
	transport := newTransport()
	transport.Proxy, transport.DialContext = nil, dial
	opts = append(opts, WithTCPAddr("daemon:8082", nil), func(c *Client) error { c.tcp.dial = dial; return nil })
	c, err := New("http://daemon", append([]Option{WithHTTPClient(&http.Client{Transport: transport})}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		_ = port.Close()
		<-served
		<-ported
	})
	return c
}
