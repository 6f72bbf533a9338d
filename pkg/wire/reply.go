package wire

import (
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A Reply answers a command of a duplex connection. It does not count as a frame.
type Reply struct {
	Ref       *uint64    `json:"ref,omitempty"` // the command's own; none if it had none
	Positions []Position `json:"positions,omitempty"`
	Position  *Position  `json:"position,omitempty"`
	Time      int64      `json:"time,omitempty"` // Unix milliseconds; with Position
	Problem   *Problem   `json:"problem,omitempty"`
}

// appendReply appends r as one NDJSON line. Members are left out that say nothing.
func appendReply(dst []byte, r *Reply) []byte {
	dst = append(dst, `{"reply":{`...)
	from := len(dst)
	member := func(name string) {
		if len(dst) > from {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), name...), `":`...)
	}
	if r.Ref != nil {
		member("ref")
		dst = strconv.AppendUint(dst, *r.Ref, 10)
	}
	if len(r.Positions) > 0 {
		member("positions")
		dst = appendPositions(dst, r.Positions)
	}
	if r.Position != nil {
		member("position")
		dst = append(r.Position.Append(append(dst, '"')), '"')
	}
	if r.Time != 0 {
		member("time")
		dst = strconv.AppendInt(dst, r.Time, 10)
	}
	if r.Problem != nil {
		member("problem")
		dst = appendValue(dst, "reply", r.Problem)
	}
	return append(dst, "}}\n"...)
}

func appendPositions(dst []byte, positions []Position) []byte {
	separator := byte('[')
	for _, p := range positions {
		dst = append(p.Append(append(dst, separator, '"')), '"')
		separator = ','
	}
	return append(dst, ']')
}

// appendReplyCBOR appends r as a CBOR frame.
func appendReplyCBOR(dst []byte, r *Reply) []byte {
	head := len(dst) + 2
	dst = append(dst, cbor.Array|2, kindReply, cbor.Map)
	members := uint64(0)
	member := func(name string) {
		members++
		dst = cbor.AppendText(dst, name)
	}
	if r.Ref != nil {
		member("ref")
		dst = cbor.AppendHead(dst, cbor.Uint, *r.Ref)
	}
	if len(r.Positions) > 0 {
		member("positions")
		dst = cbor.AppendHead(dst, cbor.Array, uint64(len(r.Positions)))
		for _, p := range r.Positions {
			dst = cbor.AppendText(dst, p.String())
		}
	}
	if r.Position != nil {
		member("position")
		dst = cbor.AppendText(dst, r.Position.String())
	}
	if r.Time != 0 {
		member("time")
		dst = cbor.AppendInt(dst, r.Time)
	}
	if r.Problem != nil {
		member("problem")
		dst = appendValueCBOR(dst, "reply", r.Problem)
	}
	return cbor.CloseHead(dst, head, cbor.Map, members)
}
