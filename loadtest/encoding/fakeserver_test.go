package encoding

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A fakeServer speaks as much of PROTOCOL.md as a closed loop needs, and misbehaves
// as told. Its sessions are their topics' names.
type fakeServer struct {
	textOnly bool // no CBOR, no compression
	// spoil returns what a poll gets in place of the frames of the nth message of a
	// topic (from 1); position is that of any of them.
	spoil func(n uint64, line func(n uint64, payload []byte) []byte, payload []byte) []byte

	mu     sync.Mutex // guards topics
	topics map[string]*fakeTopic
}

type fakeTopic struct {
	published uint64
	sent      uint64      // to the session
	waiting   chan []byte // payloads
}

func startFake(t *testing.T, f *fakeServer) Config {
	t.Helper()
	f.topics = map[string]*fakeTopic{}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	cfg := Default()
	cfg.Target, cfg.Clients, cfg.Rounds, cfg.Duration, cfg.Objects = s.URL, 2, 2, 20*time.Millisecond, []int{3, 30}
	return cfg
}

func (f *fakeServer) topic(name string) *fakeTopic {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.topics[name] == nil {
		f.topics[name] = &fakeTopic{waiting: make(chan []byte, 1)}
	}
	return f.topics[name]
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	switch {
	case path[0] == "sessions" && len(path) == 1:
		var o wire.OpenRequest
		_ = json.NewDecoder(r.Body).Decode(&o)
		name := o.Topics[0].Topic
		select {
		case <-f.topic(name).waiting: // an earlier session's
		default:
		}
		f.topic(name).sent = 0
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(wire.SessionOpened{Session: name, Ack: true, Positions: []wire.Position{position(name, f.topic(name).published)}})
	case path[2] == "messages":
		f.publish(w, r, path[1])
	case path[2] == "poll":
		f.poll(w, r, path[1])
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func position(topic string, n uint64) wire.Position {
	return wire.Position{Topic: topic, Epoch: "k3", Offset: n}
}

func (f *fakeServer) publish(w http.ResponseWriter, r *http.Request, name string) {
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	t := f.topic(name)
	t.published++
	t.waiting <- body.Bytes()
	_ = json.NewEncoder(w).Encode(wire.Published{Position: position(name, t.published), Time: 1})
}

func (f *fakeServer) poll(w http.ResponseWriter, r *http.Request, name string) {
	t, binary := f.topic(name), r.URL.Query().Get("format") == "cbor"
	switch {
	case binary && f.textOnly:
		refuse(w, wire.CodeNotAcceptable)
		return
	case r.URL.Query().Get("ack") != strconv.FormatUint(t.sent, 10):
		refuse(w, wire.CodeStaleAck)
		return
	}
	line := func(n uint64, payload []byte) []byte { return jsonMessage(position(name, n), payload) }
	if binary {
		line = func(n uint64, payload []byte) []byte { return cborMessage(position(name, n), payload) }
	}
	var answer []byte
	select {
	case payload := <-t.waiting:
		t.sent++
		answer = line(t.published, payload)
		if f.spoil != nil {
			answer = f.spoil(t.published, line, payload)
		}
	case <-time.After(10 * time.Millisecond): // as the end of a poll that was held
	case <-r.Context().Done():
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && !f.textOnly && len(answer) > 0 {
		answer = zip(answer)
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	_, _ = w.Write(answer)
}

func refuse(w http.ResponseWriter, code wire.Code) {
	p := problem.New(code, "", "as told")
	w.Header().Set("Content-Type", wire.ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

func zip(b []byte) []byte {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(b)
	_ = z.Close()
	return zipped.Bytes()
}

func jsonMessage(p wire.Position, payload []byte) []byte {
	return fmt.Appendf(nil, "{\"position\":%q,\"time\":1,\"data\":%s}\n", p, payload)
}

func cborMessage(p wire.Position, payload []byte) []byte {
	b, err := cbor.Marshal([]any{0, p.Topic, p.Epoch, p.Offset, 1, nil, cbor.RawMessage(payload), nil, nil})
	if err != nil {
		panic(err)
	}
	return b
}
