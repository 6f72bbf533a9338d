package wire

import "bytes"

// Events are frames as an EventSource takes them (HTML, section "Server-sent
// events"). A message has no event type, so that onmessage gets messages alone; gaps,
// hello and end have their own:
//
//	id: a.b@k3:18
//	data: {"position":"a.b@k3:18","time":1700000000000,"data":[1,2]}
//
//	event: gap
//	id: a.b@k3:21
//	data: {"gap":{…}}

// encodeEvent returns f as an event whose id is its position.
func encodeEvent(f *Frame) []byte {
	return f.AppendEvent(nil, f.Position().String())
}

// AppendEvent appends the frame as an event with an id of the connection's own.
func (f *Frame) AppendEvent(dst []byte, id string) []byte {
	name := ""
	if f.gap != nil {
		name = "gap"
	}
	return appendEvent(dst, name, id, f.Bytes(NDJSON))
}

// appendEvent appends an event whose data is a line of JSON, with its newline. An
// empty name is that of a message; without an id the browser keeps the last.
func appendEvent(dst []byte, name, id string, line []byte) []byte {
	if name != "" {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	if id != "" {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	dst = append(append(dst, "data: "...), bytes.TrimSuffix(line, []byte("\n"))...)
	return append(dst, "\n\n"...)
}
