package wire

import "github.com/pubsubd/pubsubd/pkg/wire/cbor"

// The first element of a frame in CBOR.
const (
	kindMessage = iota
	kindGap
	kindHello
	kindEnd
	kindReply
)

// How many elements the frames have that say all in elements. There may be more in
// time, never fewer.
const (
	messageElements = 9
	gapElements     = 7
)

// appendMessageCBOR appends m as one CBOR item:
//
//	[0, "a.b", "k3", 18, 1700000000000, null, {"n": 1}, null, null]
//	[0, "a.b", "k3", 19, 1700000000000, "text/plain", "hi", "id", "key"]
//	[0, "a.b", "k3", 20, 1700000000000, "image/png", h'8950', null, null]
//
// that is kind, topic, epoch, offset, time, type, payload, id, key.
func appendMessageCBOR(dst []byte, m *Message) []byte {
	dst = append(dst, cbor.Array|messageElements, kindMessage)
	dst = cbor.AppendText(dst, m.Position.Topic)
	dst = cbor.AppendText(dst, m.Position.Epoch)
	dst = cbor.AppendHead(dst, cbor.Uint, m.Position.Offset)
	dst = cbor.AppendInt(dst, m.Time)
	dst = appendTextOrNull(dst, m.Type)
	dst = appendPayloadCBOR(dst, m)
	dst = appendTextOrNull(dst, m.ID)
	return appendTextOrNull(dst, m.Key)
}

func appendPayloadCBOR(dst []byte, m *Message) []byte {
	switch {
	case m.Type == "" && m.CBOR:
		return append(dst, m.Data...)
	case m.Type == "":
		return cbor.AppendFromJSON(dst, m.Data)
	case m.IsText():
		return cbor.AppendText(dst, m.Data)
	}
	return cbor.AppendBytes(dst, m.Data)
}

func appendTextOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, cbor.Null)
	}
	return cbor.AppendText(dst, s)
}

// appendGapCBOR appends g as one CBOR item:
//
//	[1, "a.b", "slow", "k3", 9, "k3", 19]
//
// that is kind, topic, reason, epoch and offset after which messages are lost, and
// epoch and offset of the last one lost.
func appendGapCBOR(dst []byte, g *Gap) []byte {
	dst = append(dst, cbor.Array|gapElements, kindGap)
	dst = cbor.AppendText(dst, g.Topic)
	dst = cbor.AppendText(dst, string(g.Reason))
	dst = cbor.AppendText(dst, g.After.Epoch)
	dst = cbor.AppendHead(dst, cbor.Uint, g.After.Offset)
	dst = cbor.AppendText(dst, g.Position.Epoch)
	return cbor.AppendHead(dst, cbor.Uint, g.Position.Offset)
}

// appendValueCBOR appends what is sent seldom, by way of its JSON.
func appendValueCBOR(dst []byte, name string, value any) []byte {
	return cbor.AppendFromJSON(dst, appendValue(nil, name, value))
}
