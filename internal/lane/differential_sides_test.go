package lane_test

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	sess "github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A scene is what one client does on one connection, the same for both daemons. Its texts
// have the placeholders HOST and SESSION, and TOPIC for the first token of the scene's
// own topics. Scenes play concurrently and must not see each other.
type scene struct {
	name string

	// first is a valid request. The client waits for its answer, so that a lane has the
	// connection. Empty: the odd bytes come first.
	first string

	// odd are the odd bytes. They are written in parts that end at cuts, with pause in
	// between. cuts are offsets after the placeholders are filled in.
	odd   string
	cuts  []int
	pause time.Duration

	// A patient client sends the last request once no more bytes come. Otherwise the last
	// request follows the odd bytes at once.
	patient bool
}

// lineEnds finds line ends that may precede a request of the lane, and not follow a body.
var lineEnds = regexp.MustCompile(`(^|\n\r?\n)([\r\n]{1,4})`)

// lineEnds returns where in the odd bytes such line ends are.
func (sc scene) lineEnds() (at [][2]int) {
	for _, found := range lineEnds.FindAllStringSubmatchIndex(sc.odd, -1) {
		at = append(at, [2]int{found[4], found[5]})
	}
	return at
}

// without returns the scene without the first n of them.
func (sc scene) without(n int) scene {
	for _, at := range slices.Backward(sc.lineEnds()[:n]) {
		sc.odd = sc.odd[:at[0]] + sc.odd[at[1]:]
	}
	return sc
}

// The last request of a scene is its own publish. An answer shows that all earlier
// requests were answered, and that the connection still works. Otherwise an earlier
// request swallowed the publish, or the connection is closed.
const (
	lastTopic = "TOPIC.last"
	last      = "POST /v1/topics/" + lastTopic + "/messages HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\n\r\nlast"
)

// sceneHost is the address of neither daemon, because their addresses differ.
const sceneHost = "pubsubd.example"

// A sight is what the client of a scene saw, and what the scene left in the daemon. It is
// masked, so that equal behaviour gives equal sights.
type sight struct {
	answers string // all bytes received
	closed  bool   // whether the daemon closed, before or after the client ended its side
	state   string // of the scene's session and topics
}

func (s sight) String() string {
	return fmt.Sprintf("%s\n-- closed: %v\n%s", s.answers, s.closed, s.state)
}

// A side is one of the two daemons, with the clients that play scenes to it. It may be
// used concurrently.
type side struct {
	*kit
	addr  string // where clients connect; Addr unless a relay is in front of it
	epoch string

	// A client that receives nothing for quiet assumes that the daemon waits for more.
	// quiet is well above the poll timeout.
	quiet time.Duration
}

// Settings of both sides: polls time out soon, nothing expires.
const (
	sidePollTimeout = 100 * time.Millisecond
	sideQuiet       = 4 * sidePollTimeout

	// surely bounds the wait for what must happen, on a busy machine.
	surely = 20 * time.Second
	// endQuiet bounds the wait for the daemon to close after its client. A stream may stay
	// open.
	endQuiet = 2 * time.Second
)

func startSide(t testing.TB, way lane.Way, origins ...string) *side {
	t.Helper()
	k := serveLane(t, way, lanetest.Settings{
		Origins: origins, Hosts: []string{"h", sceneHost},
		Transport: transport.Config{PollTimeout: sidePollTimeout, MaxOutputDelay: 20 * time.Millisecond},
		Broker:    broker.Config{HistoryAge: time.Hour},
		Session:   sess.Config{InactivityTimeout: time.Hour},
	}, nil)
	k.Ticking()
	s := &side{kit: k, addr: k.Addr(), quiet: sideQuiet}
	published, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "epoch"}, Data: []byte("1")}, 0, time.Now())
	require.NoError(t, err)
	s.epoch = published.Position.Epoch
	return s
}

// laneCalls returns how many calls the lane has served, without those of net/http.
func (s *side) laneCalls() int {
	families, err := s.Parts.Metrics.Registry.Gather()
	if err != nil {
		return 0
	}
	n := 0
	for _, family := range families {
		if family.GetName() != "pubsubd_calls_total" {
			continue
		}
		for _, sample := range family.GetMetric() {
			for _, label := range sample.GetLabel() {
				if label.GetName() == "way" && label.GetValue() == "lane" {
					n += int(sample.GetCounter().GetValue())
				}
			}
		}
	}
	return n
}

// play plays a scene whose topics begin with token, and returns its sight.
func (s *side) play(sc scene, token string) (sight, error) {
	session, err := s.setStage(token)
	if err != nil {
		return sight{}, err
	}
	fill := func(text string) string { return fillIn(text, token, session) }
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		return sight{}, err
	}
	c := listenTo(conn)
	defer c.end()
	if sc.first != "" {
		c.write(fill(sc.first))
		if !c.await(surely, wholeAnswer) {
			return sight{}, fmt.Errorf("the first request was not answered: %q", c.text())
		}
	}
	c.writeCut(fill(sc.odd), sc.cuts, sc.pause)
	answered := fill(`{"position":"` + lastTopic + "@")
	if sc.patient {
		c.await(s.quiet, never)
	}
	c.write(fill(last))
	c.await(s.quiet, func(text string) bool { return strings.Contains(text, answered) })
	c.endWrites()
	c.await(max(endQuiet, s.quiet), never)
	// With bytes behind a stream, net/http does not notice that the client leaves. The
	// lane does. Both are correct.
	answers, closed := c.text(), c.isOver() || strings.Contains(sc.odd, "mode=stream")
	c.end()
	return sight{answers: s.mask(answers, session), closed: closed, state: s.mask(s.state(token, session), session)}, nil
}

var halfEscaped = regexp.MustCompile(`%(.?)SESSION`)

// fillIn replaces the placeholders. All session IDs have the same length, so cuts are at
// the same offsets on both sides.
func fillIn(text, token, session string) string {
	text = halfEscaped.ReplaceAllString(text, "%${1}SESS") // otherwise the ID would decide whether the escape is valid
	return strings.NewReplacer("HOST", sceneHost, "SESSION", session, "TOPIC", token).Replace(text)
}

// setStage publishes the messages that the scene's polls find, and opens its session. Its
// polls with ack=0 are answered at once, with the same two frames each time.
func (s *side) setStage(token string) (session string, err error) {
	for _, name := range []string{".polled", ".stateless"} {
		for _, text := range []string{"1", `"two"`} {
			m := &wire.Message{Position: wire.Position{Topic: token + name}, Data: []byte(text)}
			if _, err := s.Parts.Broker.Publish(m, 0, time.Now()); err != nil {
				return "", err
			}
		}
	}
	opened, _, err := s.Parts.Sessions.Open(context.Background(), sess.Opening{Topics: []wire.Start{{Topic: token + ".polled", From: wire.FromOldest}}, Ack: true}, time.Now())
	if err != nil {
		return "", err
	}
	return opened.ID(), nil
}

// state returns what a scene left: the state of its session, and the messages of its
// topics.
func (s *side) state(token, session string) string {
	var b strings.Builder
	if found, err := s.Parts.Sessions.Get([]byte(session)); err != nil {
		fmt.Fprintln(&b, err)
	} else {
		state, subscriptions := found.State(time.Now())
		state.Subscriptions = slices.Collect(subscriptions)
		state.Polling = false // the poll may still be ending
		text, _ := json.Marshal(state)
		fmt.Fprintf(&b, "%s\n", text)
	}
	for _, name := range []string{".polled", ".stateless", ".published", ".last"} {
		frames, _ := s.Parts.Broker.ReadTopic(wire.Start{Topic: token + name, From: wire.FromOldest}, frame.Limit{Frames: 100, Bytes: 1 << 20}, time.Now())
		for _, f := range frames {
			b.Write(f.Bytes(frame.NDJSON))
		}
	}
	return b.String()
}

// published lists the newest position of every topic that has messages.
func (s *side) published() []string {
	var all []string
	for after := ""; ; {
		list := s.Parts.Broker.Topics(broker.NewListing([]string{">", "_>"}, func(string) bool { return true }), after, 1000)
		for _, topic := range list.Topics {
			if topic.Messages > 0 {
				all = append(all, fmt.Sprintf("%s:%d, %d bytes", topic.Topic, topic.Position.Offset, topic.Bytes))
			}
		}
		if after = list.Next; after == "" {
			return all
		}
	}
}

// Masks for text that differs between daemons, or from one moment to the next. Text of
// varying length also changes Content-Length.
var (
	maskDates   = regexp.MustCompile(`(?m)^Date: [^\r\n]*`)
	maskTimes   = regexp.MustCompile(`"time":\d{13}`)
	maskIDs     = regexp.MustCompile(`"session":"[^"]{27}"`)
	maskBytes   = regexp.MustCompile(`"base64":"[^"]+"`)
	maskVarying = regexp.MustCompile(`"idle_ms":\d+|"retry_after_ms":\d+|(?m:^Retry-After: \d+)|"topics":\[[^\]]*\](,"next":"[^"]*")?`)
	maskLengths = regexp.MustCompile(`(?m)^Content-Length: \d+`)
	firstChunk  = regexp.MustCompile(`\r\n\r\n[1-9a-f][0-9a-f]*\r\n\{`)
	nextChunk   = regexp.MustCompile(`\n\r\n[1-9a-f][0-9a-f]*\r\n\{`)
	gzipHead    = regexp.MustCompile(`Content-Encoding: gzip\r\nContent-Length: (\d+)\r\n([^\r\n]+\r\n)*\r\n`)
	heads       = regexp.MustCompile(`HTTP/1\.[01] \d\d\d [^\r\n]*\r\n([^\r\n]+\r\n)*\r\n`)

	// What is not HTTP is answered with net/http's own 400, or with the lane's problem.
	notHTTP = regexp.MustCompile(`HTTP/1\.1 400 Bad Request\r\n(Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request|` +
		`([^\r\n]+\r\n)+Connection: close\r\n\r\n\{[^\n]*"code":"invalid_request","detail":"the request is not valid HTTP: [^\n]*\}\n)$`)
)

// mask replaces text that may differ, and sorts the lines of each head.
func (s *side) mask(text, session string) string {
	text = unpack(notHTTP.ReplaceAllString(text, "not HTTP"))
	text = maskBytes.ReplaceAllStringFunc(text, func(payload string) string { // the payload may contain the session ID
		_, encoded, _ := strings.Cut(payload, ":")
		decoded, err := base64.StdEncoding.DecodeString(strings.Trim(encoded, `"`))
		if err != nil {
			return payload
		}
		return fmt.Sprintf(`"base64 of":%q`, decoded)
	})
	text = s.maskCBOR(text)
	text = strings.NewReplacer(session, "SESSION", "@"+s.epoch+":", "@EPOCH:").Replace(text)
	text = maskDates.ReplaceAllString(text, "Date: …")
	text = maskTimes.ReplaceAllString(text, `"time":…`)
	text = maskIDs.ReplaceAllString(text, `"session":"…"`)
	if maskVarying.MatchString(text) {
		text = maskVarying.ReplaceAllString(text, "…")
		text = maskLengths.ReplaceAllString(text, "Content-Length: …")
	}
	// The boundaries of a stream's chunks do not matter.
	text = firstChunk.ReplaceAllString(text, "\r\n\r\n…\r\n{")
	text = nextChunk.ReplaceAllString(text, "\n{")
	return heads.ReplaceAllStringFunc(text, func(head string) string {
		lines := strings.SplitAfter(head, "\r\n")
		slices.Sort(lines[1 : len(lines)-2])
		return strings.Join(lines, "")
	})
}

// maskCBOR is mask for frames in CBOR. The epoch is a text string there. The time is an
// integer of eight bytes, whose first bytes are constant in this century.
func (s *side) maskCBOR(text string) string {
	text = strings.ReplaceAll(text, string([]byte{0x60 + byte(len(s.epoch))})+s.epoch, "EPOCH")
	const begin, length = "\x1b\x00\x00\x01", 9
	for {
		i := strings.Index(text, begin)
		if i < 0 || len(text) < i+length {
			return text
		}
		text = text[:i] + "TIME" + text[i+length:]
	}
}

// unpack replaces each gzip body by its content. It masks the length, which varies with
// the content.
func unpack(text string) string {
	for {
		at := gzipHead.FindStringSubmatchIndex(text)
		if at == nil {
			return text
		}
		head, rest := text[at[0]:at[1]], text[at[1]:]
		var n int
		_, _ = fmt.Sscan(text[at[2]:at[3]], &n)
		n = min(n, len(rest))
		body := "not one gzip member"
		in := strings.NewReader(rest[:n])
		if r, err := gzip.NewReader(in); err == nil {
			r.Multistream(false)
			if all, err := io.ReadAll(r); err == nil && in.Len() == 0 {
				body = string(all)
			}
		}
		head = strings.Replace(head, "Content-Encoding: gzip", "Content-Encoding: …", 1)
		text = text[:at[0]] + maskLengths.ReplaceAllString(head, "Content-Length: …") + body + rest[n:]
	}
}

func never(string) bool { return false }

// wholeAnswer reports whether text begins with a whole answer that has a
// Content-Length.
func wholeAnswer(text string) bool {
	head, body, ok := strings.Cut(text, "\r\n\r\n")
	length := lanetest.ContentLength.FindStringSubmatch(head)
	var n int
	if ok && length != nil {
		_, _ = fmt.Sscan(length[1], &n)
	}
	return ok && length != nil && len(body) >= n
}

// A listened is a connection that keeps all received bytes.
type listened struct {
	net.Conn
	changed chan struct{} // capacity 1; sent to after each change
	reader  sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	came []byte
	over bool // no more bytes will come
}

func listenTo(conn net.Conn) *listened {
	c := &listened{Conn: conn, changed: make(chan struct{}, 1)}
	c.reader.Go(c.read)
	return c
}

func (c *listened) read() {
	buffer := make([]byte, 16<<10)
	for {
		n, err := c.Read(buffer)
		c.mu.Lock()
		c.came = append(c.came, buffer[:n]...)
		c.over = err != nil
		c.mu.Unlock()
		select {
		case c.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (c *listened) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.came)
}

func (c *listened) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// write writes what the daemon still takes: it may have closed the connection, or stopped
// reading.
func (c *listened) write(text string) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c.Conn, text)
}

// writeCut writes text in parts that end at cuts, with pause in between.
func (c *listened) writeCut(text string, cuts []int, pause time.Duration) {
	begin := 0
	for _, cut := range cuts {
		if begin < cut && cut < len(text) {
			c.write(text[begin:cut])
			begin = cut
			time.Sleep(pause)
		}
	}
	c.write(text[begin:])
}

func (c *listened) endWrites() { _ = c.Conn.(*net.TCPConn).CloseWrite() }

// await reads until enough returns true, the connection ends, or nothing comes for quiet.
// It reports whether enough returned true.
func (c *listened) await(quiet time.Duration, enough func(text string) bool) bool {
	for {
		if enough(c.text()) {
			return true
		}
		if c.isOver() {
			return enough(c.text())
		}
		select {
		case <-c.changed:
		case <-time.After(quiet):
			return false
		}
	}
}

// end closes the connection. It may be called twice.
func (c *listened) end() {
	c.Close()
	c.reader.Wait()
}
