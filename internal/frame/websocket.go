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
	finalFrame = 0x80 // FIN: the message is whole
	compressed = 0x40 // RSV1: it is deflated (RFC 7692, section 7.2.3.1)

	opText   = 0x1
	opBinary = 0x2
	opPing   = 0x9
)

// syncTail is what a block ends with and a message goes without (RFC 7692, section
// 7.2.1).
const syncTail = "\x00\x00\xff\xff"

// SocketMessage returns the frame as a message of a WebSocket on which messages may be
// deflated, each by itself; of those for which that pays, see Deflated. The caller must
// not change the bytes.
func (f *Frame) SocketMessage(format Format, least int) []byte {
	if _, pays := f.Deflated(format.OffSocket(), least); !pays {
		return f.Bytes(format)
	}
	return f.in(form{format: format, deflated: true})
}

// ping is the heartbeat of a WebSocket. Its receiver answers.
var ping = []byte{finalFrame | opPing, 0}

// appendSocketHead appends the head of a whole message of so many bytes. first is the
// opcode, and what else its byte has beside FIN.
func appendSocketHead(dst []byte, first byte, length int) []byte {
	dst = append(dst, finalFrame|first)
	switch {
	case length <= 125:
		return append(dst, byte(length))
	case length <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, 126), uint16(length))
	}
	return binary.BigEndian.AppendUint64(append(dst, 127), uint64(length))
}
