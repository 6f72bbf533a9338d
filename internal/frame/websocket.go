package frame

import "encoding/binary"

// The heads of WebSocket frames that a server sends (RFC 6455, section 5.2):
//
//	 0               1
//	 7 6 5 4 3 2 1 0 7 6 5 4 3 2 1 0
//	+-+-+-+-+-------+-+-------------+----------------------------+
//	|F|R|0|0|opcode |0| length      | length as 2 or 8 bytes, if |
//	|I|S| | |       | | or 126, 127 | it is 126 or 127           |
//	|N|V| | |       | |             |                            |
//	+-+-+-+-+-------+-+-------------+----------------------------+
const (
	finalFrame = 0x80 // FIN: the message is complete
	compressed = 0x40 // RSV1: it is deflated (RFC 7692, section 7.2.3.1)

	opText   = 0x1
	opBinary = 0x2
	opPing   = 0x9
)

// syncTail ends a deflated block. A WebSocket message omits it (RFC 7692, section 7.2.1).
const syncTail = "\x00\x00\xff\xff"

// SocketMessage returns the frame as a WebSocket message, deflated by itself if that pays;
// see Deflated. The connection must have negotiated permessage-deflate.
func (f *Frame) SocketMessage(format Format, least int) []byte {
	_, pays := f.Deflated(format.OffSocket(), least)
	return f.in(form{format: format, deflated: pays})
}

// ping is the heartbeat of a WebSocket: the client must answer it.
var ping = []byte{finalFrame | opPing, 0}

// appendSocketHead appends the head of a complete message of the given length, with flags
// in its first byte. Formats that are not for WebSockets have no head.
func (f Format) appendSocketHead(dst []byte, flags byte, length int) []byte {
	opcode := formats[f].opcode
	if opcode == 0 {
		return dst
	}
	dst = append(dst, finalFrame|flags|opcode)
	switch {
	case length <= 125:
		return append(dst, byte(length))
	case length <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, 126), uint16(length))
	}
	return binary.BigEndian.AppendUint64(append(dst, 127), uint64(length))
}
