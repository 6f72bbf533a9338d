package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A socket is a client over a WebSocket (RFC 6455), with as much of it as pushes
// need: whole messages in, and pings, which it answers. It offers no
// extension, so frames are as they were published; a fragmented message is an
// error.
type socket struct {
	listener
	request []byte
	hello   []byte // the frame to send once it is open, if any
	silent  bool   // the handshake is all that is said of the subscription
	lines   bool   // a message may hold several pushes, one a line
	binary  bool   // messages are binary, not text
	replies []byte // frames to send
	carry   []byte // bytes of a head or frame whose end has not come
	open    bool
}

// The nonce and its answer are those of RFC 6455, section 1.3. That it is the
// same for all is of no concern where nobody caches.
const (
	socketKey    = "dGhlIHNhbXBsZSBub25jZQ=="
	socketAccept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
)

// Upgrade is the request that a browser's WebSocket makes, without its offer to
// compress.
func Upgrade(authority, path string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\nHost: " + authority + "\r\n" +
		"Connection: Upgrade\r\nPragma: no-cache\r\nCache-Control: no-cache\r\n" +
		"User-Agent: " + userAgent + "\r\n" +
		"Upgrade: websocket\r\nOrigin: http://" + authority + "\r\nSec-WebSocket-Version: 13\r\n" +
		"Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-US,en;q=0.9\r\n" +
		"Sec-WebSocket-Key: " + socketKey + "\r\n\r\n")
}

// Connected is part of Machine.
func (s *socket) Connected(time.Duration) []byte { return s.request }

// Closed is part of Machine.
func (s *socket) Closed(_ time.Duration, err error) {
	if !s.open && len(s.carry) > 0 {
		err = fmt.Errorf("handshake %.200q: %w", s.carry, err)
	}
	if s.publisher != nil {
		s.publisher.Closed(0, err)
	}
	s.events.Closed(s.number, err)
}

// Receive is part of Machine.
func (s *socket) Receive(now time.Duration, b []byte) ([]byte, error) {
	if len(s.carry) > 0 {
		b = append(s.carry, b...)
		s.carry = nil
	}
	s.replies = nil
	for len(b) > 0 {
		n, err := s.step(b, now)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			s.carry, err = collectPush(nil, b)
			return s.replies, err
		}
		b = b[n:]
	}
	return s.replies, nil
}

// step takes what b begins with, and returns how long that is; 0 if it is not
// all there.
func (s *socket) step(b []byte, now time.Duration) (int, error) {
	if s.open {
		return s.frame(b, now)
	}
	head, _, ok := bytes.Cut(b, []byte("\r\n\r\n"))
	if !ok {
		return 0, nil
	}
	if err := CheckUpgraded(string(head)); err != nil {
		return 0, fmt.Errorf("handshake %.300q: %w", b, err)
	}
	s.open = true
	s.replies = append(s.replies, s.hello...)
	if s.silent {
		s.begin(noPosition) // the handshake is all that is said
	}
	return len(head) + len("\r\n\r\n"), nil
}

// CheckUpgraded follows RFC 6455, section 4.1: "If the status code received from
// the server is not 101 …", and what comes after it.
func CheckUpgraded(head string) error {
	lines := strings.Split(head, "\r\n")
	if !strings.HasPrefix(lines[0], "HTTP/1.1 101 ") {
		return errors.New("was refused")
	}
	missing := map[string]string{"upgrade": "websocket", "connection": "upgrade", "sec-websocket-accept": socketAccept}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		name, value = strings.ToLower(name), strings.TrimSpace(value)
		if want, ok := missing[name]; ok && strings.EqualFold(value, want) {
			delete(missing, name)
		}
		if name == "sec-websocket-extensions" {
			return fmt.Errorf("has the extension %q, which the client did not offer", value)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("lacks %v", missing)
	}
	return nil
}

// How a frame that is whole begins, and a bit of it (RFC 6455, section 5.2).
const (
	FinText   = 0x81
	FinBinary = 0x82
	FinClose  = 0x88
	FinPing   = 0x89
	FinPong   = 0x8a
	masked    = 0x80
)

func (s *socket) frame(b []byte, now time.Duration) (int, error) {
	payload, n, err := CutFrame(b)
	if err != nil || n == 0 {
		return 0, err
	}
	switch b[0] {
	case s.whole():
		return n, s.pushes(payload, now)
	case FinPing:
		s.replies = AppendFrame(s.replies, FinPong, payload)
	case FinPong:
	case FinClose:
		return 0, fmt.Errorf("the server closed the WebSocket with %q: %w", payload, io.ErrUnexpectedEOF)
	default:
		return 0, fmt.Errorf("frame begins with %#x: neither a whole message as expected nor ping, pong or close", b[0])
	}
	return n, nil
}

// whole is how a frame begins that is a whole message.
func (s *socket) whole() byte {
	if s.binary {
		return FinBinary
	}
	return FinText
}

func (s *socket) pushes(payload []byte, now time.Duration) error {
	if !s.lines {
		err := s.take(payload, now)
		s.replies, s.commands = append(s.replies, s.commands...), nil
		return err
	}
	for line := range bytes.SplitSeq(payload, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		if err := s.take(line, now); err != nil {
			return err
		}
	}
	return nil
}

// CutFrame returns the payload of the frame that b begins with, and the frame's
// length; 0 if it is not all there.
func CutFrame(b []byte) (payload []byte, n int, err error) {
	if len(b) < 2 {
		return nil, 0, nil
	}
	begin, length := 2, uint64(b[1])
	switch {
	case b[1]&masked != 0:
		return nil, 0, errors.New("frame from the server is masked")
	case length == 126 && len(b) < 4, length == 127 && len(b) < 10:
		return nil, 0, nil
	case length == 126:
		begin, length = 4, uint64(binary.BigEndian.Uint16(b[2:]))
	case length == 127:
		begin, length = 10, binary.BigEndian.Uint64(b[2:])
	}
	if length > wire.MaxFrameBytes {
		return nil, 0, fmt.Errorf("frame of %d bytes is longer than %d", length, wire.MaxFrameBytes)
	}
	end := begin + int(length)
	if len(b) < end {
		return nil, 0, nil
	}
	return b[begin:end], end, nil
}

// AppendFrame appends a client's frame. It must be masked; the key is zero, which
// leaves the bytes as they are: nothing here is hidden from a proxy.
func AppendFrame(b []byte, first byte, payload []byte) []byte {
	b = append(b, first)
	if len(payload) < 126 {
		b = append(b, masked|byte(len(payload)))
	} else {
		b = append(b, masked|126)
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	}
	b = append(b, 0, 0, 0, 0)
	return append(b, payload...)
}
