package request

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// TooLarge is the problem of a body of more than limit bytes.
func TooLarge(limit int) *wire.Problem {
	return problem.New(wire.CodeMessageTooLarge, "send a smaller body", "a body must have at most %d bytes", limit)
}

// decodeTopics is decode for a JSON object with lists of topics. It counts members and topics
// first. With more than quick topics, but not more than most, the error is ErrLong.
func decodeTopics(object []byte, v any, most, quick int) error {
	switch depthOfCommas(object, cbor.MaxMembers, min(most, quick)) {
	case 1:
		return errMembers
	case 2:
		if quick < most {
			return ErrLong
		}
		return problem.New(wire.CodeTooManySubscriptions, "name fewer topics, or raise limits.subscriptions",
			"a request must name at most %d topics", most)
	}
	return decode(object, v)
}

var errMembers = problem.New(wire.CodeInvalidRequest, "send each field once; see PROTOCOL.md for the fields",
	"a request must have at most %d fields", cbor.MaxMembers)

// depthOfCommas returns 1 if a JSON object has as many commas between its members as given.
// It returns 2 if the lists in the object have as many commas between their elements as
// given. It stops there. Otherwise it returns 0. To decode would take 20 times as long.
func depthOfCommas(object []byte, members, elements int) int {
	depth, inString := 0, false
	left := [...]int{0, members, elements}
	for i := 0; i < len(object); i++ {
		switch c := object[i]; {
		case c == '"':
			inString = !inString
		case inString:
			if c == '\\' {
				i++
			}
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && (depth == 1 || depth == 2):
			if left[depth]--; left[depth] == 0 {
				return depth
			}
		}
	}
	return 0
}

// ErrLong says that a command takes too long to decode for a loop.
var ErrLong = errors.New("the command takes long to decode")

// InJSON returns a value of an answer in JSON.
func InJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an answer does not marshal: " + err.Error())
	}
	return text
}

// decode decodes one JSON value into v, as wire.UnmarshalStrict does.
func decode(body []byte, v any) error {
	if err := wire.UnmarshalStrict(body, v); err != nil {
		return unreadable(err)
	}
	return nil
}

// unreadable returns the problem for an error of decoding.
func unreadable(err error) *wire.Problem {
	var fault interface{ Code() wire.Code } // of a topic, a position, a start, a rate or a payload
	if !errors.As(err, &fault) {
		return problem.New(wire.CodeInvalidRequest, "see PROTOCOL.md for the fields", "the body cannot be read: %v", err)
	}
	remedy := "write topic, topic@oldest, topic@newest-50 or topic@epoch:offset"
	switch fault.Code() {
	case wire.CodeInvalidRequest:
		remedy = "see PROTOCOL.md for the form of a subscription"
	case wire.CodeInvalidBody:
		remedy = "send each field once"
	}
	return problem.New(fault.Code(), remedy, "%v", err)
}

// A query reads the parameters of a request. It is strict, where net/url's Query drops
// what it cannot read. It keeps the first error, and returns defaults after it.
type query struct {
	values url.Values
	err    error
}

func parseQuery(raw string) (q query) {
	var err error
	if q.values, err = url.ParseQuery(raw); err != nil {
		q.err = problem.New(wire.CodeInvalidRequest, "percent-encode the query", "the query cannot be read: %v", err)
	}
	return q
}

func (q *query) fail(err error) {
	if q.err == nil {
		q.err = err
	}
}

// one returns the only value of a parameter, or "" without it. It refuses an empty value: a client
// whose variable was empty would get the default, and not notice.
func (q *query) one(name string) string {
	value := q.oneOrEmpty(name)
	if value == "" && q.values.Has(name) {
		q.fail(empty(name))
	}
	return value
}

// empty refuses a parameter or a member whose empty value would pass for none.
func empty(name string) *wire.Problem {
	return problem.New(wire.CodeInvalidRequest, "send a value, or omit "+name, "%s is empty", name)
}

// text returns the only value of a parameter, or nil without it.
func (q *query) text(name string) *string {
	if value := q.one(name); value != "" {
		return &value
	}
	return nil
}

// oneOrEmpty is one for a parameter whose empty value means none.
func (q *query) oneOrEmpty(name string) string {
	values := q.values[name]
	switch {
	case len(values) > 1:
		q.fail(problem.New(wire.CodeInvalidRequest, "send it once", "%s must appear once; got %d", name, len(values)))
	case len(values) == 1 && q.err == nil:
		return values[0]
	}
	return ""
}

// takeToken makes the parameter token the credentials of the request.
func (q *query) takeToken(c *auth.Credentials) {
	switch token := q.one("token"); {
	case token == "":
	case c.Authorization != "" || c.Token != "":
		q.fail(problem.New(wire.CodeInvalidRequest, "send only one of them", "the request has a token in the query and another token"))
	default:
		c.Token = token
	}
}

// number returns a parameter from lo to hi, or the default.
func (q *query) number(name string, lo, hi, otherwise uint64) uint64 {
	text := q.one(name)
	if q.err != nil || !q.values.Has(name) {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < lo || n > hi {
		q.fail(outside(name, text, lo, hi))
	}
	return n
}

// outside returns the problem of a value that is not a whole number from lo to hi.
func outside(name, text string, lo, hi uint64) *wire.Problem {
	return problem.New(wire.CodeInvalidRequest, "send a whole number in this range",
		"%s must be %d to %d; got %s", name, lo, hi, wire.Quote(text))
}

// word returns a parameter that is one of some words. The first is the default.
func word[T ~string](q *query, name string, words ...T) T {
	given := cmp.Or(T(q.one(name)), words[0])
	if !slices.Contains(words, given) {
		all := strings.ReplaceAll(strings.Trim(fmt.Sprint(words), "[]"), " ", " or ")
		q.fail(problem.New(wire.CodeInvalidRequest, "use "+all+" (the default is "+string(words[0])+")", "%s must be %s; got %s", name, all, wire.Quote(given)))
	}
	return given
}

// mode returns the mode of a poll.
func (q *query) mode() transport.Mode { return word(q, "mode", transport.Modes()...) }

// echo reports whether a client gets its own messages, too.
func (q *query) echo() bool { return word(q, "echo", "true", "false") == "true" }

// format returns the format of the answer: format= beats Accept.
func (q *query) format(accepts Accepts) frame.Format {
	name := q.one("format")
	for _, f := range formats {
		if name == f.name {
			return f.format
		}
	}
	switch {
	case q.values.Has("format"):
		q.fail(problem.New(wire.CodeNotAcceptable, "use format=json or format=cbor", "unknown format %s", wire.Quote(name)))
	case accepts.None:
		q.fail(problem.New(wire.CodeNotAcceptable, "accept application/x-ndjson or application/cbor-seq, or use format=json or format=cbor", "the Accept header lists no supported format"))
	}
	return accepts.Format
}

// topics returns the topics to subscribe to.
func (q *query) topics() []wire.Start {
	topics := make([]wire.Start, 0, len(q.values["topic"]))
	for _, text := range q.values["topic"] {
		start, err := wire.ParseStart(text)
		if err != nil {
			q.fail(unreadable(err))
			return nil
		}
		topics = append(topics, start)
	}
	return topics
}

// limitRate gives max_rate to each topic, if it is set. It is for streams only: other polls
// end too soon.
func (q *query) limitRate(topics []wire.Start, mode transport.Mode) {
	if rate := q.one("max_rate"); rate != "" {
		every, err := wire.ParseRate(rate)
		if err != nil {
			q.fail(unreadable(err))
		}
		for i := range topics {
			topics[i].Every = every
		}
	}
	if mode != transport.Stream && slices.ContainsFunc(topics, func(s wire.Start) bool { return s.Every > 0 }) {
		q.fail(problem.New(wire.CodeInvalidRequest, "use mode=stream, or open a session", "max_rate needs mode=stream or a session"))
	}
}

// opening returns the session to open for topics, as the query asks.
func (q *query) opening(topics []wire.Start, mode transport.Mode) session.Opening {
	echo := q.echo()
	o, err := openingOf(topics, q.text("client"), &echo)
	q.fail(err)
	q.limitRate(topics, mode)
	return o
}

// openingOf returns the session to open for topics. By default a client gets its own
// messages too. Without echo it must name itself.
func openingOf(topics []wire.Start, client *string, echo *bool) (o session.Opening, err error) {
	if client != nil {
		if err := checkClient(*client); err != nil {
			return o, err
		}
		o.Client = *client
	}
	o.Topics = topics
	if o.NoEcho = echo != nil && !*echo; o.NoEcho && client == nil {
		return o, problem.New(wire.CodeInvalidRequest, "add client, the id with which you publish", "echo=false needs client")
	}
	return o, nil
}

// problemOf returns a problem with err as its detail, or nil if err is nil.
func problemOf(err error, code wire.Code, remedy string) error {
	if err == nil {
		return nil
	}
	return problem.New(code, remedy, "%v", err)
}
