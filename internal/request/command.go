package request

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// CommandOf reads a command, which names at most so many topics. With more than quick topics the
// error is ErrLong. With another error, it returns a command of which only the ref counts, or nil
// if the text is not an object or has too many members.
func CommandOf(raw []byte, binary bool, most, quick int) (command *wire.Command, err error) {
	if binary {
		command, err = readCBORCommand(raw, most, quick)
	} else {
		command, err = readCommand(raw, most, quick)
	}
	if c := command; err == nil {
		switch kinds := countOf(c.Subscribe != nil || c.Unsubscribe != nil, c.Publish != nil, c.Ack != nil, c.Ping, c.Auth != ""); {
		case kinds != 1:
			err = problem.New(wire.CodeInvalidRequest, "send one kind a command: subscribe and unsubscribe, publish, ack, ping, or auth", "a command must have exactly one kind; got %d", kinds)
		case !isRef(c.Ref):
			err = problem.New(wire.CodeInvalidRequest, "use a smaller whole number", "ref must be at most 2^53-1")
		}
	}
	if command != nil && !isRef(command.Ref) {
		command.Ref = nil // a client may not be able to read it
	}
	return command, err
}

// isRef reports whether there is no ref, or a reply can have it.
func isRef(ref *uint64) bool { return ref == nil || *ref <= wire.MaxOffset }

// countOf returns how many are true.
func countOf(given ...bool) (n int) {
	for _, is := range given {
		if is {
			n++
		}
	}
	return n
}

// Peek returns the ref of a command, or nil if it cannot be read, and whether it is a publish. To
// decode the command would take ten times as long.
func Peek(raw []byte, binary bool) (ref *uint64, publishes bool) {
	if binary {
		object, kept, _ := cbor.MapToJSON(raw, "publish", "subscribe", "unsubscribe", "ack", "auth")
		raw, publishes = object, kept["publish"] != nil
	}
	ref, inJSON := peekJSON(raw)
	return ref, publishes || inJSON
}

// peekJSON returns the ref of a command, or nil if it cannot be read or is there twice, and whether
// it is a publish.
func peekJSON(object []byte) (ref *uint64, publishes bool) {
	var named struct {
		Ref     onlyRef        `json:"ref"`
		Publish jsontext.Value `json:"publish"`
	}
	if json.Unmarshal(object, &named, lenient) != nil { // decoding reports the error
		named.Ref.ref = nil // perhaps the beginning of something else, as in 07
	}
	return named.Ref.ref, named.Publish != nil
}

// An onlyRef is the ref of a command whose other members may be wrong: nil if it is no ref, or is
// there twice.
type onlyRef struct {
	ref   *uint64
	times int
}

// UnmarshalJSON implements json.Unmarshaler. It is called for each member of the name, and never
// fails, because the others are read, too.
func (r *onlyRef) UnmarshalJSON(value []byte) error {
	r.times++
	if n, err := strconv.ParseUint(string(value), 10, 64); err == nil && isRef(&n) && r.times == 1 {
		r.ref = &n
	} else {
		r.ref = nil
	}
	return nil
}

// readCBORCommand reads a command in CBOR, as readCommand does.
func readCBORCommand(raw []byte, most, quick int) (*wire.Command, error) {
	object, kept, err := cbor.MapToJSON(raw, "publish")
	if err != nil {
		return nil, problem.New(wire.CodeInvalidRequest, `send a map such as {"subscribe":["a"],"ref":1}; PROTOCOL.md lists the commands`, "the command is not a map: %v", err)
	}
	command, err := readCommand(object, most, quick)
	if err != nil || kept["publish"] == nil {
		return command, err
	}
	if command.Publish, err = readCBORItem(kept["publish"]); err != nil {
		return &wire.Command{Ref: command.Ref}, err
	}
	return command, nil
}

// readCommand reads a command in JSON. With an error, it returns a command that has only
// the ref, or nil if the text is not an object or has too many members.
func readCommand(raw []byte, most, quick int) (*wire.Command, error) {
	if !bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{")) {
		return nil, errNoCommand
	}
	command := &wire.Command{}
	err := decodeTopics(raw, command, most, quick)
	if err == nil {
		return command, nil
	}
	if p, _ := errors.AsType[*wire.Problem](err); p == errMembers || errors.Is(err, ErrLong) { // to look for the ref would take as long as to decode
		return nil, err
	}
	if !jsontext.Value(raw).IsValid(lenient) {
		return nil, errNoCommand
	}
	ref, _ := peekJSON(raw)
	return &wire.Command{Ref: ref}, err
}

// lenient are the options to look for the ref of a command that fails.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

var errNoCommand = problem.New(wire.CodeInvalidRequest, `send an object such as {"subscribe":["a"],"ref":1}; PROTOCOL.md lists the commands`, "the command is not an object")
