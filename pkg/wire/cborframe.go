package wire

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

// HeartbeatCBOR is the heartbeat in CBOR: null.
var HeartbeatCBOR = []byte{cborNull}

// AppendMessageCBOR appends m as one CBOR item:
//
//	[0, "a.b", "k3", 18, 1700000000000, null, {"n": 1}, null, null]
//	[0, "a.b", "k3", 19, 1700000000000, "text/plain", "hi", "id", "key"]
//	[0, "a.b", "k3", 20, 1700000000000, "image/png", h'8950', null, null]
//
// that is kind, topic, epoch, offset, time, type, payload, id, key.
func AppendMessageCBOR(dst []byte, m *Message) []byte {
	dst = append(dst, cborArray|messageElements, kindMessage)
	dst = appendCBORText(dst, m.Position.Topic)
	dst = appendCBORText(dst, m.Position.Epoch)
	dst = appendHead(dst, cborUint, m.Position.Offset)
	dst = appendCBORInt(dst, m.Time)
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
		return AppendCBORFromJSON(dst, m.Data)
	case m.IsText():
		return appendCBORText(dst, m.Data)
	}
	return appendCBORBytes(dst, m.Data)
}

func appendTextOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, cborNull)
	}
	return appendCBORText(dst, s)
}

// AppendGapCBOR appends g as one CBOR item:
//
//	[1, "a.b", "slow", "k3", 9, "k3", 19]
//
// that is kind, topic, reason, epoch and offset after which messages are lost, and
// epoch and offset of the last one lost.
func AppendGapCBOR(dst []byte, g *Gap) []byte {
	dst = append(dst, cborArray|gapElements, kindGap)
	dst = appendCBORText(dst, g.Topic)
	dst = appendCBORText(dst, string(g.Reason))
	dst = appendCBORText(dst, g.After.Epoch)
	dst = appendHead(dst, cborUint, g.After.Offset)
	dst = appendCBORText(dst, g.Position.Epoch)
	return appendHead(dst, cborUint, g.Position.Offset)
}

// AppendHelloCBOR appends h as one CBOR item, [2, {…}], with the members that it has
// in JSON.
func AppendHelloCBOR(dst []byte, h *Hello) []byte {
	return appendValueCBOR(append(dst, cborArray|2, kindHello), "hello", h)
}

// AppendEndCBOR appends the frame that says why a stream ends, [3, {…}], with the
// problem's members in JSON.
func AppendEndCBOR(dst []byte, p *Problem) []byte {
	return appendValueCBOR(append(dst, cborArray|2, kindEnd), "end", p)
}

// appendValueCBOR appends what is sent seldom, by way of its JSON.
func appendValueCBOR(dst []byte, name string, value any) []byte {
	return AppendCBORFromJSON(dst, appendValue(nil, name, value))
}
