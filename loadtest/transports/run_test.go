package transports

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A fakeServer is as much of the daemon as a batch in JSON needs, with faults.
type fakeServer struct {
	// spoil changes the frames of an answer to a poll.
	spoil func(frames []string) []string
	// refuse is how many messages are refused before any is taken.
	refuse int

	mu     sync.Mutex
	topics map[string][]string // frames
	more   chan struct{}       // closed when there are others
	starts map[string]wire.Start
}

func startFake(t *testing.T, s *fakeServer) string {
	t.Helper()
	s.topics, s.starts, s.more = map[string][]string{}, map[string]wire.Start{}, make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", s.publish)
	mux.HandleFunc("POST /v1/sessions", s.open)
	mux.HandleFunc("DELETE /v1/sessions/{id}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /v1/sessions/{id}/poll", s.poll)
	mux.HandleFunc("GET /v1/topics/{topic}", s.state)
	mux.HandleFunc("DELETE /v1/topics/{topic}", func(w http.ResponseWriter, r *http.Request) { s.say(w, "{}") })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func (s *fakeServer) say(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write([]byte(text))
}

func (s *fakeServer) position(topic string, offset int) wire.Position {
	return wire.Position{Topic: topic, Epoch: "e1", Offset: uint64(offset)}
}

func (s *fakeServer) publish(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := ""
	for in := bufio.NewScanner(r.Body); in.Scan(); {
		if s.refuse > 0 {
			s.refuse--
			answer += `{"problem":{"title":"busy","status":503,"code":"overloaded","retry_after_ms":1}}` + "\n"
			continue
		}
		var m struct {
			Topic string
			Data  json.RawMessage
		}
		_ = json.Unmarshal(in.Bytes(), &m)
		p := s.position(m.Topic, len(s.topics[m.Topic])+1)
		s.topics[m.Topic] = append(s.topics[m.Topic], string(wire.Content{Message: &wire.Message{Position: p, Time: 1_763_757_000_123, Data: m.Data}}.AppendJSON(nil)))
		answer += `{"position":"` + p.String() + `","time":1}` + "\n"
	}
	close(s.more)
	s.more = make(chan struct{})
	s.say(w, answer)
}

// after returns the frames behind so many, and what is closed when there are more.
func (s *fakeServer) after(topic string, had int) ([]string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topics[topic][had:], s.more
}

func (s *fakeServer) open(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var o wire.OpenRequest
	_ = json.NewDecoder(r.Body).Decode(&o)
	id := "s" + strconv.Itoa(len(s.starts))
	s.starts[id] = o.Topics[0]
	text, _ := json.Marshal(wire.SessionOpened{Session: id, Ack: true, Positions: []wire.Position{s.position(o.Topics[0].Topic, 0)}})
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(text)
}

func (s *fakeServer) poll(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start := s.starts[r.PathValue("id")]
	ack, _ := strconv.Atoi(r.URL.Query().Get("ack"))
	frames := s.topics[start.Topic][int(start.After)+ack:]
	if s.spoil != nil {
		frames = s.spoil(append([]string{}, frames...))
	}
	w.Header().Set("Content-Type", ndjson)
	s.say(w, strings.Join(frames, ""))
}

func (s *fakeServer) state(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	topic := r.PathValue("topic")
	n := len(s.topics[topic])
	text, _ := json.Marshal(wire.TopicState{Topic: topic, Position: s.position(topic, n), Oldest: s.position(topic, 0), Messages: n})
	s.say(w, string(text))
}

type silent struct{}

func (silent) Notice(string)          {}
func (silent) Update(loadtest.Status) {}

func measureFake(t *testing.T, s *fakeServer, ways ...string) Result {
	t.Helper()
	cfg := Default()
	cfg.Target, cfg.Messages, cfg.Repeats, cfg.Clients = startFake(t, s), 2500, 2, 3
	cfg.Transports, cfg.Formats, cfg.Ways = []string{Batch}, []string{JSON}, ways
	r, err := Run(t.Context(), cfg, silent{})
	require.NoError(t, err)
	require.Len(t, r.Rows, len(ways))
	return r
}

func TestAMeasurementOfBothWays(t *testing.T) {
	r := measureFake(t, &fakeServer{refuse: 1200}, Filled, Live)
	require.Zero(t, r.ExitCode, "%v %v", r.Failed, r.Missed)
	for i, way := range Ways() {
		row := r.Rows[i]
		require.Equal(t, way, row.Way)
		require.Len(t, row.Samples, 2)
		require.Equal(t, 7500, row.Messages)
		require.Positive(t, row.PerSecond.Min)
		require.GreaterOrEqual(t, row.PerSecond.Max, row.PerSecond.Min)
		require.Greater(t, row.BytesIn, 270.0)
		require.Positive(t, row.ClientUS.Mean)
	}
}

func TestMessagesThatComeTwiceOrOutOfOrder(t *testing.T) {
	r := measureFake(t, &fakeServer{spoil: func(frames []string) []string {
		if len(frames) < 3 {
			return frames
		}
		frames[1], frames[2] = frames[2], frames[1]
		return append([]string{frames[0]}, frames...)
	}}, Filled)
	require.Equal(t, loadtest.ExitMissed, r.ExitCode)
	require.NotEmpty(t, r.Missed)
	require.Positive(t, r.Rows[0].Duplicates)
	require.Positive(t, r.Rows[0].Disordered)
	require.Zero(t, r.Rows[0].Lost)
}

// What a gap says is lost is lost.
func TestAGapIsLoss(t *testing.T) {
	r := measureFake(t, &fakeServer{spoil: func(frames []string) []string {
		if len(frames) > 10 {
			frames[9] = others[lines].gap
		}
		return frames
	}}, Filled)
	require.Equal(t, loadtest.ExitMissed, r.ExitCode)
	require.Empty(t, r.Failed)
	require.Positive(t, r.Rows[0].Lost)
	require.Positive(t, r.Rows[0].Gaps)
}

// A subject that fails is given up, and the others go on.
func TestAServerThatBreaksTheProtocol(t *testing.T) {
	r := measureFake(t, &fakeServer{spoil: func([]string) []string { return []string{"[]\n"} }}, Filled, Live)
	require.Equal(t, loadtest.ExitFailed, r.ExitCode)
	require.Len(t, r.Failed, 2)
	require.Contains(t, r.Failed[0], "batch json filled")
}

func TestAHistoryThatIsTooSmall(t *testing.T) {
	cfg := Default()
	fake := &fakeServer{}
	cfg.Target, cfg.Messages, cfg.Transports, cfg.Formats, cfg.TargetTCP = startFake(t, fake), 10, []string{Batch}, []string{JSON}, ""
	m := &runner{cfg: &cfg, tag: "t"}
	m.authority = strings.TrimPrefix(cfg.Target, "http://")
	p, err := newPublisher(t.Context(), m.authority, m.newTopic(), 10)
	require.NoError(t, err)
	defer p.conn.Close()
	require.NoError(t, p.run(t.Context()))
	require.NoError(t, p.held())
	fake.mu.Lock()
	fake.topics[p.topic] = fake.topics[p.topic][1:]
	fake.mu.Unlock()
	require.ErrorContains(t, p.held(), "holds 9 of 10 messages: raise its --history-messages")
}

// phases keeps what is measured, in order.
type phases struct {
	silent
	told []string
}

func (p *phases) Update(s loadtest.Status) { p.told = append(p.told, s.Phase) }

// What the machine does meanwhile must not always meet the same one.
func TestRoundsBeginWithAnotherEach(t *testing.T) {
	cfg := Default()
	cfg.Target, cfg.Messages, cfg.Repeats, cfg.Transports, cfg.Formats = startFake(t, &fakeServer{}), 10, 2, []string{Batch}, []string{JSON}
	p := &phases{}
	_, err := Run(t.Context(), cfg, p)
	require.NoError(t, err)
	filled, live := "batch json filled", "batch json live"
	require.Equal(t, []string{filled, live, live, filled, filled, live}, p.told)
}

// Of several clients one is told of a gap: the others lose nothing.
func TestTheLossOfOneIsNotThatOfOthers(t *testing.T) {
	polls := 0
	r := measureFake(t, &fakeServer{spoil: func(frames []string) []string {
		if polls++; polls == 1 {
			return []string{others[lines].gap}
		}
		return frames
	}}, Filled)
	require.Equal(t, int64(2500), r.Rows[0].Lost)
	require.Equal(t, int64(1), r.Rows[0].Gaps)
}

// What is interrupted ends, with what there is.
func TestAnInterruptedMeasurement(t *testing.T) {
	cfg := Default()
	ctx, cancel := context.WithCancel(t.Context())
	polls := 0
	cfg.Target = startFake(t, &fakeServer{spoil: func(frames []string) []string {
		if polls++; polls == 30 {
			cancel()
		}
		return frames
	}})
	cfg.Messages, cfg.Repeats, cfg.Transports, cfg.Formats = 100, 1000, []string{Batch}, []string{JSON}
	r, err := Run(ctx, cfg, silent{})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, r.Rows, 2)
	require.Empty(t, r.Failed)
}

func TestConfigurationsThatCannotBeMeasured(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"--clients":         func(c *Config) { c.Clients = 0 },
		"--messages":        func(c *Config) { c.Messages = mostMessages + 1 },
		"--single-messages": func(c *Config) { c.SingleMessages = c.Messages + 1 },
		"--repeats":         func(c *Config) { c.Repeats = 0 },
		"--transports":      func(c *Config) { c.Transports = []string{"pigeon"} },
		"--formats":         func(c *Config) { c.Formats = nil },
		"--ways":            func(c *Config) { c.Ways = []string{Live, Live} },
		"none of":           func(c *Config) { c.Transports, c.Formats = []string{SSE}, []string{CBOR} },
		"--target ":         func(c *Config) { c.Target = "ftp://x" },
		"--target-tcp":      func(c *Config) { c.Target = "http://h" },
		"--server-pid":      func(c *Config) { c.ServerPID = 1 },
		"--target:":         func(c *Config) { c.ServerCommand = nil },
	} {
		cfg := Default()
		cfg.ServerCommand = []string{"serve"}
		require.NoError(t, cfg.check())
		change(&cfg)
		_, err := Run(t.Context(), cfg, silent{})
		var fault ConfigError
		require.ErrorAs(t, err, &fault, want)
		require.ErrorContains(t, err, want)
	}
}

func TestWhatIsMeasured(t *testing.T) {
	cfg := Default()
	cfg.BareCommand = []string{"floor"}
	all := cfg.subjects()
	require.Len(t, all, 15+12, "with the floors, which stand on what was filled")
	require.Equal(t, subject{Single, JSON, Filled}, all[0])
	require.Equal(t, subject{BareLoop, JSON, Filled}, all[2])
	require.NotContains(t, all, subject{SSE, CBOR, Live})
	require.NotContains(t, all, subject{TCP, JSON, Filled})
	require.Equal(t, 200_000, cfg.messages(all[5]))
	require.Equal(t, 20_000, cfg.messages(all[0]))
}

// Ratios are of the means, and of rounds in which both were measured.
func TestRatios(t *testing.T) {
	row := func(transport, format string, perSecond ...float64) Row {
		var samples []Sample
		for _, v := range perSecond {
			samples = append(samples, Sample{TookS: 1, PerSecond: v, ClientS: 0.95, BytesIn: int64(len(transport))})
		}
		return newRow(subject{transport, format, Filled}, 1, 1, samples)
	}
	all := ratios([]Row{row(TCP, CBOR, 90, 110), row(BareWriter, CBOR, 100, 200), row(Multiple, CBOR, 100, 100), row(Single, CBOR)})
	require.Len(t, all, 2)
	require.Equal(t, "many per poll ÷ TCP, CBOR", all[0].Name)
	require.InDelta(t, 1.0, all[0].Value, 1e-9)
	require.True(t, all[0].Met())
	require.InDelta(t, 100.0/150, all[1].Value, 1e-9)
	require.InDelta(t, 0.9, all[1].Rounds.Max, 1e-9)
	require.InDelta(t, 0.55, all[1].Rounds.Min, 1e-9)
	require.False(t, all[1].Met())
	require.True(t, all[1].Bound, "its clients were busy 95 % of the time")
}
