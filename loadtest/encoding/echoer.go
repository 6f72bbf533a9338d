package encoding

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An echoer is one client: publisher and only subscriber of its own topic, in a
// closed loop. It has two connections, since a long poll keeps one; the session
// that it polls has acks. It belongs to one goroutine.
//
// It never recovers: whatever would make a real client try again ends it with an
// error, because the test must know.
type echoer struct {
	codec     codec
	topic     string
	publisher *connection
	poller    *connection
	objects   []Object
	tally     *tally

	publishBegin string // of a publish, up to its length
	pollHeaders  string
	openBegin    string // of what the poll's connection posts, up to its length
	session      string
	target       []byte        // of a poll, being made
	acked        uint64        // frames had
	position     wire.Position // of the last message had
	trips        int

	zipped   bytes.Reader
	unzipper gzip.Reader
	unzipped bytes.Buffer
}

// A fault is a promise that the server did not keep.
type fault struct {
	kind string
	text string
}

func (f *fault) Error() string { return f.kind + ": " + f.text }

// The kinds of faults.
const (
	lost      = "lost"
	duplicate = "duplicate"
	disorder  = "disorder"
	changed   = "changed"
)

func faulty(kind, format string, args ...any) error {
	return &fault{kind, fmt.Sprintf(format, args...)}
}

// errOpaque is of a server that passes on what it is to read and check.
var errOpaque = errors.New("the server treats messages of this type as bytes, and does not parse them")

// errNotCompressed is what a server's answers are that does not compress them.
var errNotCompressed = errors.New("the answer to a poll that accepts gzip was not compressed")

// newEchoer connects a client and opens its session.
func newEchoer(ctx context.Context, c codec, address, authority, topic string, objects []Object) (*echoer, error) {
	publisher, err := dial(ctx, address, false)
	if err != nil {
		return nil, err
	}
	poller, err := dial(ctx, address, c.gzip)
	if err != nil {
		_ = publisher.conn.Close()
		return nil, err
	}
	host := "Host: " + authority + "\r\n"
	e := &echoer{
		codec: c, topic: topic, publisher: publisher, poller: poller, objects: objects, tally: &tally{},
		publishBegin: "POST /v1/topics/" + topic + "/messages HTTP/1.1\r\n" + host + "Content-Type: " + c.contentType + "\r\nContent-Length: ",
		openBegin:    " HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nContent-Length: ",
		pollHeaders:  host,
	}
	if c.gzip {
		e.pollHeaders += "Accept-Encoding: gzip\r\n"
	}
	if err := e.open(); err != nil {
		e.hangUp()
		return nil, err
	}
	return e, nil
}

// open opens the session. What comes late is not waited for.
func (e *echoer) open() error {
	e.setDeadline(time.Now().Add(patience))
	body, err := json.Marshal(wire.OpenRequest{Topics: []wire.Start{{Topic: e.topic}}})
	if err != nil {
		return err
	}
	if err := e.poller.post("POST /v1/sessions"+e.openBegin, body); err != nil {
		return err
	}
	_, body, err = e.poller.wanted("open a session", http.StatusCreated)
	if err != nil {
		return err
	}
	var opened wire.SessionOpened
	if err := json.Unmarshal(body, &opened); err != nil || opened.Session == "" || len(opened.Positions) != 1 {
		return fmt.Errorf("opened session %.200q is not the requested one", body)
	}
	e.session, e.position = opened.Session, opened.Positions[0]
	return nil
}

func (e *echoer) setDeadline(t time.Time) {
	_ = e.publisher.conn.SetDeadline(t)
	_ = e.poller.conn.SetDeadline(t)
}

// close ends the session, so that the server has no more work with it, and hangs up.
func (e *echoer) close() error {
	defer e.hangUp()
	if err := e.poller.post("POST /v1/sessions/"+e.session+"/close"+e.openBegin, nil); err != nil {
		return err
	}
	_, _, err := e.poller.wanted("close the session", http.StatusNoContent)
	return err
}

func (e *echoer) hangUp() {
	_ = e.publisher.conn.Close()
	_ = e.poller.conn.Close()
}

// trip builds and publishes the objects, and makes objects of what comes back. The
// poll is asked first, so that it waits when the message comes.
func (e *echoer) trip() error {
	e.trips++
	e.objects[0].Volume = e.trips // no earlier message passes for this one
	var body []byte
	var failure error
	build := cpuOf(func() { body, failure = e.codec.encode(e.objects) })
	if failure != nil {
		return failure
	}
	if err := e.poll(); err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	position, err := e.publish(body)
	if err != nil {
		return err
	}
	parse, err := e.receive(position)
	if err != nil {
		return err
	}
	e.tally.add(build, parse, e.publisher.in+e.poller.in, e.publisher.out+e.poller.out)
	return nil
}

func (e *echoer) poll() error {
	t := append(e.target[:0], "/v1/sessions/"...)
	t = append(t, e.session...)
	t = append(t, "/poll?ack="...)
	t = strconv.AppendUint(t, e.acked, 10)
	e.target = append(t, e.codec.query...)
	return e.poller.get(e.target, e.pollHeaders)
}

func (e *echoer) publish(body []byte) (wire.Position, error) {
	if err := e.publisher.post(e.publishBegin, body); err != nil {
		return wire.Position{}, fmt.Errorf("publish: %w", err)
	}
	_, answer, err := e.publisher.wanted("publish", http.StatusOK)
	if err != nil {
		return wire.Position{}, err
	}
	var published wire.Published
	if err := json.Unmarshal(answer, &published); err != nil {
		return wire.Position{}, fmt.Errorf("publish: answer %.200q: %w", answer, err)
	}
	return published.Position, nil
}

// receive polls until the message of that position is there, and returns the CPU
// time that reading it took.
func (e *echoer) receive(want wire.Position) (parse time.Duration, err error) {
	for {
		head, body, err := e.poller.wanted("poll", http.StatusOK)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, faulty(lost, "the message %v did not arrive in time", want)
		}
		if err != nil {
			return 0, err
		}
		if e.codec.gzip && !head.Gzip && len(body) > 0 {
			return 0, errNotCompressed
		}
		var frames []frame
		parse += cpuOf(func() { frames, err = e.read(head.Gzip, body) })
		if err != nil {
			return 0, err
		}
		if len(frames) > 0 {
			return parse, e.check(frames, want)
		}
		if err := e.poll(); err != nil { // it was held for as long as the server holds one
			return 0, fmt.Errorf("poll: %w", err)
		}
	}
}

// read returns the frames of an answer.
func (e *echoer) read(compressed bool, body []byte) (frames []frame, err error) {
	if compressed {
		if body, err = e.unzip(body); err != nil {
			return nil, fmt.Errorf("decompress the answer: %w", err)
		}
	}
	err = e.codec.frames(body, func(f frame) error {
		frames = append(frames, f)
		return nil
	})
	return frames, err
}

func (e *echoer) unzip(body []byte) ([]byte, error) {
	e.zipped.Reset(body)
	if err := e.unzipper.Reset(&e.zipped); err != nil {
		return nil, err
	}
	e.unzipped.Reset()
	_, err := io.Copy(&e.unzipped, io.LimitReader(&e.unzipper, mostAnswer))
	return e.unzipped.Bytes(), err
}

// check holds what came against what was published: it, whole, once, and nothing
// else.
func (e *echoer) check(frames []frame, want wire.Position) error {
	for i, f := range frames {
		switch {
		case f.gap:
			return faulty(lost, "the server announced a gap: %s", f.other)
		case f.opaque != "" && f.opaque == e.codec.contentType:
			return errOpaque
		case f.other != "":
			return fmt.Errorf("a poll delivered %s, not a message of this test", f.other)
		case i > 0, f.position != want:
			return e.misplaced(f.position, want)
		case !slices.Equal(f.objects, e.objects):
			return faulty(changed, "message %v is not what was published", want)
		}
		e.acked++
		e.position = f.position
	}
	return nil
}

// misplaced says what is wrong with a message that is not the next.
func (e *echoer) misplaced(got, want wire.Position) error {
	switch {
	case got == e.position:
		return faulty(duplicate, "message %v arrived twice", got)
	case got.Topic == want.Topic && got.Epoch == want.Epoch && got.Offset > want.Offset:
		return faulty(lost, "message %v arrived instead of %v", got, want)
	}
	return faulty(disorder, "message %v arrived; %v is next", got, want)
}
