package lane_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// A pair is two daemons: one without the lane, and one with it. They must answer alike,
// whatever they receive.
type pair struct{ off, on *side }

func startPair(t testing.TB, way lane.Way, origins ...string) *pair {
	t.Helper()
	return &pair{off: startSide(t, lane.Off, origins...), on: startSide(t, way, origins...)}
}

// compare plays a scene to both daemons at once. It returns how the two sights differ, or
// "". The lane ignores line ends before a request, where net/http answers 400. So the daemon
// without the lane may be sent fewer of them: not the first one, two, three … of these places. next
// returns a token for each attempt.
func (p *pair) compare(play script, next func(attempt int) string) (why string) {
	for skipped := 0; ; skipped++ {
		token := next(skipped)
		sc := play(token)
		differs := p.compareOnce(sc, sc.without(skipped), token)
		if differs == "" {
			return ""
		}
		if why = cmp.Or(why, differs); skipped == len(sc.lineEnds()) {
			return why
		}
	}
}

// compareOnce is compare with the scene for the daemon without the lane.
func (p *pair) compareOnce(sc, scOff scene, token string) string {
	var off, on sight
	var offErr, onErr error
	var both sync.WaitGroup
	both.Go(func() { off, offErr = p.off.play(scOff, token) })
	both.Go(func() { on, onErr = p.on.play(sc, token) })
	both.Wait()
	switch {
	case offErr != nil || onErr != nil:
		return fmt.Sprintf("%s: without the lane: %v; with it: %v", sc.name, offErr, onErr)
	case off != on:
		return fmt.Sprintf("%s\nfirst %q\nthen %q\ncut at %v, pause %v, patient: %v\n== without the lane:\n%s\n== with it:\n%s", sc.name, sc.first, sc.odd, sc.cuts, sc.pause, sc.patient, off, on)
	}
	return ""
}

// A script makes a scene whose topics begin with token. It must put the token into a
// request before it mutates the request. Otherwise a mutation could reach a topic of
// another scene.
type script func(token string) scene

// A look sets how scenes are played. Many play at once, because scenes mostly wait. A
// client that receives nothing for quiet assumes that no more bytes will come.
type look struct {
	atOnce int
	quiet  time.Duration
}

// looks are tried in order until both sights of a scene are equal. On a busy machine, a
// client can take a late answer for a missing one. That was one scene in seven when four
// such tests shared two cores. The last look decides.
var looks = []look{{64, sideQuiet}, {12, 4 * sideQuiet}, {3, 12 * sideQuiet}, {1, 20 * sideQuiet}}

// maxDifferences bounds how many differences are reported. More would not help.
const maxDifferences = 5

// compareAll plays all scenes. Those with line ends before a request come last, and do not count in
// what was published in all: some attempts of compare differ.
func (p *pair) compareAll(t *testing.T, scenes []script) {
	t.Helper()
	var plain, odd []script
	for i, play := range scenes {
		if len(play(token(i)).lineEnds()) == 0 {
			plain = append(plain, play)
		} else {
			odd = append(odd, play)
		}
	}
	if p.compareThese(t, plain, 0) {
		require.Equal(t, p.off.published(), p.on.published(), "what was published, in all")
	}
	p.compareThese(t, odd, len(looks)*len(plain))
}

// compareThese plays scenes, with tokens from first on. It plays the scenes that differ again, with
// more patience, and reports whether there were none.
func (p *pair) compareThese(t *testing.T, scenes []script, first int) (alike bool) {
	t.Helper()
	left := make([]int, len(scenes))
	for i := range scenes {
		left[i] = i
	}
	var differ map[int]string
	for n, l := range looks {
		most := len(scenes)
		if n == len(looks)-1 {
			most = maxDifferences
		}
		differ = p.having(l.quiet).playAll(scenes, left, first+n*len(scenes), l.atOnce, most)
		if left = slices.Sorted(maps.Keys(differ)); len(left) == 0 {
			return n == 0
		}
		t.Logf("look %d: of %d scenes differ %v", n+1, len(scenes), left)
	}
	for _, i := range left {
		t.Errorf("scene %d: %s", i, differ[i])
	}
	return false
}

// playAll plays some of the scenes and returns the differences, by scene. It stops after
// about most differences. Scene i uses token first+i.
func (p *pair) playAll(scenes []script, some []int, first, atOnce, most int) map[int]string {
	var mu sync.Mutex // guards differ
	differ := map[int]string{}
	next := make(chan int)
	var playing sync.WaitGroup
	for range atOnce {
		playing.Go(func() {
			for i := range next {
				if why := p.compare(scenes[i], func(attempt int) string { return token(attempt<<20 + first + i) }); why != "" {
					mu.Lock()
					differ[i] = why
					mu.Unlock()
				}
			}
		})
	}
	for _, i := range some {
		mu.Lock()
		enough := len(differ) >= most
		mu.Unlock()
		if enough {
			break
		}
		next <- i
	}
	close(next)
	playing.Wait()
	return differ
}

// having returns the same pair with another quiet time.
func (p *pair) having(quiet time.Duration) *pair {
	off, on := *p.off, *p.on
	off.quiet, on.quiet = quiet, quiet
	return &pair{off: &off, on: &on}
}

// token returns the first token of the topics of scene i. Tokens are random, so that no
// mutation turns one into another.
func token(i int) string {
	random := rand.New(rand.NewPCG(uint64(i), 1))
	name := make([]byte, 12)
	for j := range name {
		name[j] = "abcdefghijklmnopqrstuvwxyz0123456789"[random.IntN(36)]
	}
	return string(name)
}

// The lane and net/http answer alike, whatever they receive.
func TestTheLaneAnswersAsNetHTTPDoes(t *testing.T) {
	for seed, way := range lanes {
		t.Run(string(way), func(t *testing.T) {
			p := startPair(t, way)
			scripts := sampleOf(slices.Concat(oddScripts(), mutations(sceneCaptures(t), 1500, uint64(seed))), seed)
			p.compareAll(t, scripts)
			require.Greater(t, p.on.laneCalls(), len(scripts)/4, "the scenes' calls that the lane has served: the comparison is of nothing else")
			require.Zero(t, p.off.laneCalls())
		})
	}
}

// sampleOf returns all scripts, or a sample that depends on part.
func sampleOf(scripts []script, part int) (sample []script) {
	step := exhaustive.Step(64)
	for i := part % step; i < len(scripts); i += step {
		sample = append(sample, scripts[i])
	}
	return sample
}

// The answers are also equal when other origins are allowed, whatever the origin of a
// request.
func TestTheLaneAnswersOtherOriginsAsNetHTTPDoes(t *testing.T) {
	for seed, origins := range [][]string{someOrigins, {"*"}} {
		t.Run(origins[0], func(t *testing.T) {
			p := startPair(t, lanes[seed%len(lanes)], origins...)
			captured := sentByPages(sceneCaptures(t), appPage, localPage, evilPage)
			scripts := sampleOf(slices.Concat(originScripts(), mutations(captured, 400, uint64(seed))), seed)
			p.compareAll(t, scripts)
			require.Greater(t, p.on.laneCalls(), len(scripts)/4)
			require.Zero(t, p.off.laneCalls())
		})
	}
}

var sentFrom = regexp.MustCompile(`(?im)^(Origin|Sec-Fetch-Site): [^\r]*\r\n`)

// sentByPages returns the requests as they are, and as each page sends them.
func sentByPages(captured []string, pages ...string) []string {
	all := captured
	for _, text := range captured {
		line, rest, _ := strings.Cut(sentFrom.ReplaceAllString(text, ""), "\r\n")
		for _, page := range pages {
			all = append(all, line+"\r\nOrigin: "+page+"\r\n"+rest, line+"\r\nOrigin: "+page+"\r\nSec-Fetch-Site: cross-site\r\n"+rest)
		}
	}
	return all
}

// sceneCaptures returns the captures with the scene's own topics.
func sceneCaptures(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, c := range captures(t) {
		all = append(all, c.with("TOPIC.published", "TOPIC.stateless"))
	}
	return all
}

// mutations returns n scenes of mutated captures. The same seed gives the same scenes.
func mutations(captured []string, n int, seed uint64) []script {
	scripts := make([]script, n)
	for i := range scripts {
		scripts[i] = func(token string) scene {
			m := mutator{rand.New(rand.NewPCG(seed, uint64(i)))}
			own := make([]string, len(captured))
			for j, text := range captured {
				own[j] = strings.ReplaceAll(text, "TOPIC", token)
			}
			return m.scene(fmt.Sprintf("mutation %d", i), own)
		}
	}
	return scripts
}

// A mutator turns valid requests into odd ones.
type mutator struct{ *rand.Rand }

func (m mutator) scene(name string, captured []string) scene {
	text := m.mutate(pick(m, captured))
	if m.IntN(3) == 0 { // another request behind it, valid or odd
		behind := pick(m, captured)
		if m.IntN(2) == 0 {
			behind = m.mutate(behind)
		}
		text += behind
	}
	return scene{
		name: name, first: pick(m, captured), odd: text, cuts: m.cuts(len(text)),
		pause: time.Duration(m.IntN(2)) * time.Millisecond, patient: m.IntN(24) == 0,
	}
}

func pick[T any](m mutator, from []T) T { return from[m.IntN(len(from))] }

// mutate makes one to three changes to text.
func (m mutator) mutate(text string) string {
	for range 1 + m.IntN(3) {
		at := m.place(text)
		switch m.IntN(8) {
		case 0: // flip a bit
			text = text[:at] + string([]byte{text[at] ^ 1<<m.IntN(8)}) + text[at+1:]
		case 1: // replace a byte
			text = text[:at] + string([]byte{pick(m, []byte("\x00\r\n\t :,;/?&=%#@.\x7f\x80\xff09aZ"))}) + text[at+1:]
		case 2, 3:
			text = text[:at] + pick(m, tokens) + text[at:]
		case 4: // remove a part
			text = text[:at] + text[min(len(text), at+1+m.IntN(12)):]
		case 5: // repeat or remove a line
			lines := strings.SplitAfter(text, "\r\n")
			line := m.IntN(len(lines))
			if m.IntN(2) == 0 {
				text = strings.Join(slices.Insert(lines, line, lines[line]), "")
			} else {
				text = strings.Join(slices.Delete(lines, line, line+1), "")
			}
		case 6: // add a header that has a meaning
			lines := strings.SplitAfter(text, "\r\n")
			text = strings.Join(slices.Insert(lines, min(1+m.IntN(len(lines)), len(lines)), pick(m, headerLines)+"\r\n"), "")
		case 7: // cut off the rest
			if m.IntN(4) == 0 {
				text = text[:at]
			}
		}
		if text == "" {
			return "\r\n"
		}
	}
	return text
}

// place returns an offset in text: anywhere, in the first line, or at the end of a line.
func (m mutator) place(text string) int {
	switch m.IntN(3) {
	case 0:
		if first := strings.IndexByte(text, '\n'); first > 0 {
			return m.IntN(first)
		}
	case 1:
		from := m.IntN(len(text))
		if end := strings.IndexByte(text[from:], '\r'); end >= 0 {
			return from + end
		}
	}
	return m.IntN(len(text))
}

// cuts returns up to four offsets at which a write ends.
func (m mutator) cuts(size int) []int {
	var cuts []int
	for m.IntN(2) == 0 && len(cuts) < 4 {
		cuts = append(cuts, m.IntN(size))
	}
	slices.Sort(cuts)
	return cuts
}

var tokens = []string{
	"\r\n", "\n", "\r", "\r\n\r\n", "\n\n", "\x00", " ", "\t", ":", " : ", ",", ";", "#", "?", "&", "=", "/", "//", "/..", "/./", "%", "%2e", "%2F", "%00", "%zz", "+",
	"HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "HTTP/1.1 ", "http://other", "&ack=1", "&ack=2", "&ack=", "ack=3&", "&mode=multiple", "&mode=single", "&mode=",
	"&format=json", "&format=cbor", "&_=8f2c", "&topic=TOPIC.stateless", "&ttl=60", "?key=k", "?ttl=60&key=%6b", "\r\n folded", "\xff", "\xc3\xa9", "\x7f",
	"0", "00", "-", "1", "9999999999", "0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 300), strings.Repeat("y", 9000),
}

var headerLines = []string{
	"Content-Length: 0", "Content-Length: 5", "Content-Length: 22", "Content-Length: 022", "Content-Length: +22", "Content-Length: 22, 22", "Content-Length:", "Content-Length: 65537",
	"Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Transfer-Encoding: gzip, chunked", "TE: trailers", "Trailer: X-After",
	"Connection: close", "Connection: keep-alive", "Connection: Upgrade", "Connection: Keep-Alive, X-A", "connection: CLOSE", "Upgrade: websocket", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk",
	"Expect: 100-continue", "Expect: 200-ok", "Host: other.example", "Host:", "host: pubsubd.example", "Accept: text/html", "Accept: application/json;q=0", "Accept: application/x-ndjson", "Accept-Encoding: gzip", "Accept-Encoding: *;q=0.5, br",
	"Origin: http://evil.example", "Origin: null", "Origin: " + appPage, "Origin: " + localPage, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Content-Type: text/plain", "Content-Type: application/json; charset=latin1",
	"Content-Type: application/x-www-form-urlencoded", "Content-Type: x", "Content-Encoding: gzip", "Authorization: Bearer other", "Cookie: a=b; c=\"d\"", "X-Unknown: 1", "x-unknown : 1", " X-Space: 1", "X-Bytes: \xff\xfe\xe9",
	"X-Nul: a\x00b", "X-Return: a\rb", "X-Long: " + strings.Repeat("z", 5000), "Range: bytes=0-1", "If-None-Match: *", "Cache-Control: no-cache", "Pragma: no-cache", "Via: 1.1 other", "Forwarded: for=192.0.2.1",
	"X-HTTP-Method-Override: DELETE", "Priority: u=1, i", "Max-Forwards: 0", ": empty", "no colon", "Keep-Alive: timeout=5",
}

// The comparison notices faults. Each lie differs from net/http in one thing only.
func TestTheDifferentialTestSeesADifference(t *testing.T) {
	p := startPair(t, lane.Off)
	honest := scene{name: "honest", first: post("1"), odd: pollZero + post("5", "Content-Type: text/plain")}
	played := 0
	for name, lie := range lies {
		played++
		t.Run(name, func(t *testing.T) {
			crooked := *p.on
			crooked.addr = relay(t, p.on.Addr(), lie)
			differs := &pair{off: p.off, on: &crooked}
			require.NotEmpty(t, differs.compareOnce(honest, honest, token(played)))
		})
	}
	t.Run("and an honest relay passes", func(t *testing.T) {
		honestly := *p.on
		honestly.addr = relay(t, p.on.Addr(), func(toDaemon, toClient string) (string, string, bool) { return toDaemon, toClient, false })
		patient := (&pair{off: p.off, on: &honestly}).having(looks[len(looks)-1].quiet)
		require.Empty(t, patient.compareOnce(honest, honest, token(0)))
	})
}

// The daemon echoes the id of a request in every kind of answer. The lane does it byte for
// byte as net/http does.
func TestRequestIDsAreEchoed(t *testing.T) {
	for _, way := range lanes {
		t.Run(string(way), func(t *testing.T) {
			p := startPair(t, way, someOrigins...)
			var scripts []script
			for name, text := range requestIDs() {
				scripts = append(scripts, func(string) scene { return scene{name: name, first: pollZero, odd: text} })
			}
			p.compareAll(t, scripts)
			require.Greater(t, p.on.laneCalls(), 2*len(scripts))

			on, off := lanetest.DialRaw(t, p.on.Addr(), time.Minute), lanetest.DialRaw(t, p.off.Addr(), time.Minute)
			for _, request := range []string{
				post("1", "X-Request-Id: r1"), post("1", "X-Request-Id: r1"), get("/v1/sessions/none/poll?ack=0", "X-Request-Id: r1"),
				get("/v1/poll?topic=TOPIC.published@oldest", "X-Request-Id: r1"), get("/v1/poll?topic=TOPIC.published@oldest"),
			} {
				request = fillIn(request, "echo", "")
				ours, _ := on.Ask(request)
				theirs, _ := off.Ask(request)
				require.Equal(t, theirs, ours, "the fields have the same order")
				require.Equal(t, strings.Contains(request, "r1"), strings.Contains(ours, "\r\nX-Request-Id: r1\r\n"))
			}
			for target, status := range map[string]string{"/v1/sse?topic=a": "200 OK", "/v1/ws?topic=a": "101 Switching Protocols"} {
				head, _ := lanetest.DialRaw(t, p.on.Addr(), time.Minute).Ask(fillIn(get(target, "X-Request-Id: r1", "Connection: Upgrade", "Upgrade: websocket",
					"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), "echo", ""))
				require.Contains(t, head, status)
				require.Contains(t, head, "\r\nX-Request-Id: r1\r\n")
			}
		})
	}
}

// The fuzz test compares the two daemons on arbitrary bytes. A poll or a publish comes
// first, so that the lane has the connection.
func FuzzLaneAgainstNetHTTP(f *testing.F) {
	for i, text := range sceneCaptures(f) {
		f.Add(text, uint16(i), i%2 == 0)
	}
	pairs := []*pair{startPair(f, lane.HandOff), startPair(f, lane.Channel)}
	plays := 0
	f.Fuzz(func(t *testing.T, text string, split uint16, poll bool) {
		if strings.Contains(text, "stream") {
			return // a stream does not end by itself
		}
		plays++
		sc := scene{name: "fuzz", first: post("1"), odd: text, cuts: []int{int(split)}}
		if poll {
			sc.first = pollZero
		}
		play := func(string) scene { return sc }
		for _, p := range pairs {
			why := p.compare(play, func(attempt int) string { return token(attempt<<32 + 2*plays) })
			if why != "" { // as in compareAll, a late answer may look like a missing one
				why = p.having(looks[len(looks)-1].quiet).compare(play, func(attempt int) string { return token(attempt<<32 + 2*plays + 1) })
			}
			require.Empty(t, why)
		}
	})
}
