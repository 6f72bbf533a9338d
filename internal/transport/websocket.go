package transport

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsflate"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A socket reads the commands on a WebSocket (RFC 6455). Each command is a message of one
// kind. It may be fragmented, and deflated by itself (RFC 7692). Control frames may arrive
// between its fragments.
type socket struct {
	kind     ws.OpCode // of messages: text or binary
	inflates bool      // compression was negotiated
	most     int       // the longest message, in bytes
	free     int       // bytes to which any deflated message may inflate

	head     ws.Header
	inside   bool  // part of the frame with that head is missing
	read     int64 // how many bytes of that frame's payload were read
	state    ws.State
	deflated wsflate.MessageState
	message  []byte // the part of a message that was read
	control  []byte // the part of a control frame's payload that was read
}

// A headReader is memory for readHead. A socket that waits needs none.
type headReader struct {
	unread  bytes.Reader
	scratch [ws.MaxHeaderSize]byte
}

var headReaders = sync.Pool{New: func() any { return new(headReader) }}

// newSocket returns a reader of commands in this format, for messages of at most this many
// bytes. For inflates see NewWebSocket.
func newSocket(format frame.Format, inflates bool, messageBytes int) *socket {
	s := &socket{kind: ws.OpText, inflates: inflates, most: MostBytes(messageBytes), free: 2 * messageBytes, state: ws.StateServerSide}
	if format.IsBinary() {
		s.kind = ws.OpBinary
	}
	if inflates {
		s.state = s.state.Set(ws.StateExtended)
	}
	return s
}

// Read implements reader. It reads as many pings, and frames that need no answer, as b
// has, and answers them together. No rate limits them, so they must cost little.
func (s *socket) Read(b []byte) (n int, in incoming, err error) {
	n, in, err = s.readFrame(b)
	for err == nil && n < len(b) && in.command == nil && in.large == nil && !in.closed && !s.inside {
		// Only the head of a ping, of a pong, and of a part of a message that is not its last can be wrong.
		final, code := b[n]&0x80 != 0, ws.OpCode(b[n]&0x0f)
		if code != ws.OpPing && code != ws.OpPong && (final || code.IsControl()) {
			break
		}
		m, next, wrong := s.readFrame(b[n:])
		if m == 0 || wrong != nil {
			return n, in, nil // the next Read returns the error
		}
		n += m
		in.answer = append(in.answer, next.answer...)
	}
	return n, in, err
}

// readFrame reads a frame, or the part of it that b has.
func (s *socket) readFrame(b []byte) (n int, in incoming, err error) {
	if !s.inside {
		if n, err = s.readHead(b); n == 0 || err != nil {
			return 0, incoming{}, err
		}
	}
	part := b[n:][:min(s.head.Length-s.read, int64(len(b)-n))]
	n += len(part)
	if s.head.OpCode.IsControl() {
		s.control = s.unmask(s.control, part)
	} else {
		s.message = s.unmask(s.message, part)
	}
	if s.read < s.head.Length {
		return n, incoming{}, nil
	}
	s.inside = false
	switch code := s.head.OpCode; {
	case code == ws.OpPing:
		in.answer = ws.MustCompileFrame(ws.NewPongFrame(s.control))
	case code == ws.OpPong:
	case code == ws.OpClose:
		in, err = s.closed()
	case s.head.Fin:
		s.state = s.state.Clear(ws.StateFragmented)
		in, err = s.whole()
	default:
		s.state = s.state.Set(ws.StateFragmented)
	}
	return n, in, err
}

// Partial implements reader.
func (s *socket) Partial() bool { return s.inside || s.state.Fragmented() }

// Held implements reader.
func (s *socket) Held() int { return len(s.message) }

// unmask appends the next part of the frame's payload, without its mask.
func (s *socket) unmask(dst, part []byte) []byte {
	begin := len(dst)
	dst = append(dst, part...)
	ws.Cipher(dst[begin:], s.head.Mask, int(s.read))
	s.read += int64(len(part))
	return dst
}

// readHead reads a frame's head. It takes nothing unless b has the whole head.
func (s *socket) readHead(b []byte) (int, error) {
	r := headReaders.Get().(*headReader)
	r.unread.Reset(b)
	head, err := ws.ReadHeaderBuffer(&r.unread, r.scratch[:])
	took := len(b) - r.unread.Len()
	r.unread.Reset(nil) // b belongs to the caller
	headReaders.Put(r)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, nil
	}
	if err == nil {
		err = ws.CheckHeader(head, s.state)
	}
	if err == nil && s.inflates {
		head, err = s.deflated.UnsetBits(head)
		if err == nil && head.Rsv != 0 {
			err = ws.ErrProtocolNonZeroRsv
		}
	}
	if err == nil && took > ws.HeaderSize(head) {
		err = errLongLength
	}
	if err != nil {
		return 0, badFrame(err)
	}
	switch {
	case head.OpCode.IsControl():
		s.control = s.control[:0]
	case head.OpCode != ws.OpContinuation && head.OpCode != s.kind:
		return 0, closeWith(ws.StatusUnsupportedData, "send text messages with format=json, binary messages with format=cbor", "the command arrived in the wrong type of WebSocket message")
	case head.Length > int64(s.most-len(s.message)):
		return 0, commandTooLarge(s.most)
	}
	s.head, s.inside, s.read = head, true, 0
	return took, nil
}

// errLongLength is an error of RFC 6455, section 5.2: a length has the minimal number of bytes.
var errLongLength = errors.New("the length has more bytes than it needs")

// A closeError is an invalid_request that has a close code of its own (RFC 6455, section 7.4.1).
type closeError struct {
	*wire.Problem
	status ws.StatusCode
}

// Unwrap lets errors.As find the problem.
func (e *closeError) Unwrap() error { return e.Problem }

func closeWith(status ws.StatusCode, remedy, detail string, args ...any) error {
	return &closeError{problem.New(wire.CodeInvalidRequest, remedy, detail, args...), status}
}

func badFrame(err error) error {
	return closeWith(ws.StatusProtocolError, "use a WebSocket client that follows RFC 6455", "the bytes are not valid WebSocket frames: %v", err)
}

// badText is about bytes that RFC 6455, section 8.1, wants to be UTF-8.
func badText(what string) error {
	return closeWith(ws.StatusInvalidFramePayloadData, "encode text in UTF-8", "%s is not valid UTF-8", what)
}

// largeDeflated is how many deflated bytes of a command a loop inflates. Most commands of
// largeCommand bytes have fewer, but as many bytes of empty blocks, each with its own codes, take 0.6 ms.
const largeDeflated = 4 << 10

// keptMessage is the largest buffer that is kept for the next message.
const keptMessage = 4 << 10

// whole returns the complete message. It is valid until the next Read.
func (s *socket) whole() (incoming, error) {
	message, deflated := s.message, s.deflated.IsCompressed()
	if s.message = s.message[:0]; cap(s.message) > keptMessage {
		s.message = nil
	}
	quick := largeCommand
	if deflated && len(message) > largeDeflated {
		quick = 0
	}
	command, err := s.text(message, deflated, quick)
	switch {
	case err != nil:
		return incoming{}, err
	case len(command) > quick:
		return incoming{bytes: len(message), large: func() ([]byte, error) { return s.text(message, deflated, s.most) }}, nil
	case command == nil:
		command = []byte{} // nil would mean that there is no command
	}
	return incoming{command: command}, nil
}

// text returns the command in a message. If either has more than quick bytes, it returns more
// than that, which nobody can use.
func (s *socket) text(message []byte, deflated bool, quick int) (command []byte, err error) {
	command = message
	if deflated && len(message) <= quick {
		command, err = inflate(message, s.most, min(s.most, s.free+inflatedTimes*len(message)), quick)
	}
	if err == nil && len(command) <= quick && s.kind == ws.OpText && !utf8.Valid(command) {
		return nil, badText("the command")
	}
	return command, err
}

// closed answers the client's close frame with its own code (RFC 6455, section 5.5.1).
func (s *socket) closed() (incoming, error) {
	if len(s.control) == 0 {
		return incoming{answer: ws.CompiledClose, closed: true}, nil
	}
	code, reason := ws.ParseCloseFrameData(s.control)
	switch {
	case len(s.control) == 1:
		return incoming{}, badFrame(errors.New("the close frame has half a code"))
	case !mayClose(code):
		return incoming{}, badFrame(fmt.Errorf("no client may send the close code %d", code))
	case !utf8.ValidString(reason):
		return incoming{}, badText("the reason of the close frame")
	}
	answer := ws.NewCloseFrame(ws.NewCloseFrameBody(code, ""))
	return incoming{answer: ws.MustCompileFrame(answer), closed: true}, nil
}

// mayClose reports whether a client may send this close code (RFC 6455, section 7.4, and IANA's
// registry of close codes, which has added 1012 to 1014).
func mayClose(code ws.StatusCode) bool {
	return 1000 <= code && code <= 1003 || 1007 <= code && code <= 1014 || 3000 <= code && code <= 4999
}

// closings has the close code for each problem that can end a connection (RFC 6455, section
// 7.4.1), unless it is a closeError. Any other problem means that the client broke a rule.
var closings = map[wire.Code]ws.StatusCode{
	wire.CodeDraining:        ws.StatusGoingAway,
	wire.CodeSessionEnded:    ws.StatusNormalClosure,
	wire.CodeMessageTooLarge: ws.StatusMessageTooBig,
	wire.CodeInternal:        ws.StatusInternalServerError,
	wire.CodeOverloaded:      1013, // try again later (IANA's registry of close codes)
}

// appendClose appends the close frame that follows the end frame with the problem of err.
func appendClose(dst []byte, err error, code wire.Code) []byte {
	status, listed := closings[code]
	if own, ok := errors.AsType[*closeError](err); ok {
		status = own.status
	} else if !listed {
		status = ws.StatusPolicyViolation
	}
	return append(dst, ws.MustCompileFrame(ws.NewCloseFrame(ws.NewCloseFrameBody(status, string(code))))...)
}

// inflateTail is the end of a block that the sender omits (RFC 7692, section 7.2.2), and an
// empty last block.
const inflateTail = "\x00\x00\xff\xff\x01\x00\x00\xff\xff"

// inflatedTimes is how many times larger than its deflated bytes a message may become,
// unless it fits the free bytes. A MiB that arrives as 1 KiB costs its sender nothing, and
// no rate limits bytes.
const inflatedTimes = 32

// An inflater inflates one message at a time, and keeps nothing of it.
type inflater struct {
	from  deflatedMessage
	flate io.ReadCloser // reads from it
}

// inflaters are shared: a new one takes 40 KB, and no rate has admitted the command yet.
var inflaters = sync.Pool{New: func() any {
	i := new(inflater)
	i.flate = flate.NewReader(&i.from)
	return i
}}

// begin makes the inflater forget what it has read.
func (i *inflater) begin() {
	if err := i.flate.(flate.Resetter).Reset(&i.from, nil); err != nil {
		panic("BUG: " + err.Error())
	}
}

// Read reads the inflated bytes. flate ends with a final block, but other blocks may follow (RFC
// 7692, section 7.2.1).
func (i *inflater) Read(b []byte) (n int, err error) {
	n, err = i.flate.Read(b)
	if errors.Is(err, io.EOF) && i.from.message.Len() > 0 {
		i.begin()
		err = nil
	}
	return n, err
}

// A deflatedMessage is a message with the tail that its sender omits. It implements flate.Reader.
type deflatedMessage struct {
	message bytes.Reader
	tail    strings.Reader
}

// Read reads the deflated bytes.
func (d *deflatedMessage) Read(b []byte) (int, error) {
	if d.message.Len() > 0 {
		return d.message.Read(b)
	}
	return d.tail.Read(b)
}

// ReadByte implements io.ByteReader, for which flate needs no buffer.
func (d *deflatedMessage) ReadByte() (byte, error) {
	if d.message.Len() > 0 {
		return d.message.ReadByte()
	}
	return d.tail.ReadByte()
}

// inflate inflates a message. The result may have at most `most` bytes, and at most as many
// as the deflated bytes have earned. inflate ends after quick bytes.
func inflate(message []byte, most, earned, quick int) ([]byte, error) {
	i := inflaters.Get().(*inflater)
	i.from.message.Reset(message)
	i.from.tail.Reset(inflateTail)
	i.begin()
	all, err := io.ReadAll(io.LimitReader(i, int64(min(earned, quick))+1))
	i.from.message.Reset(nil) // message belongs to the caller
	inflaters.Put(i)
	switch {
	case err != nil:
		return nil, closeWith(ws.StatusInvalidFramePayloadData, "deflate each message by itself, as RFC 7692 says, or turn off compression", "the command cannot be inflated: %v", err)
	case len(all) > most:
		return nil, commandTooLarge(most)
	case len(all) > earned:
		return nil, problem.New(wire.CodeMessageTooLarge, "send smaller commands, turn off compression, or publish by POST",
			"a command of %d bytes inflates to more than %d", len(message), earned)
	}
	return all, nil
}
