package request

import (
	"strings"
	"unicode"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// SubjectOf reads the wire.SubjectRequest in a body.
func SubjectOf(body []byte) (r wire.SubjectRequest, err error) {
	var given struct {
		wire.SubjectRequest
		End     *bool  `json:"end"`      // nil: not given
		UntilMS *int64 `json:"until_ms"` // nil: not given
	}
	err = decode(body, &given)
	r = given.SubjectRequest
	if err != nil {
		return r, err
	}
	if given.End != nil {
		r.End = *given.End
	}
	if given.UntilMS != nil {
		r.UntilMS = *given.UntilMS
	}
	if err := auth.CheckSubject(r.Subject); err != nil {
		return r, err
	}
	const asks = `send {"subject":"alice","end":true} or {"subject":"alice","forbid":["chat.42"],"until_ms":…}`
	switch {
	case countOf(given.End != nil, r.Forbid != nil) != 1 || r.End != (given.End != nil):
		return r, problem.New(wire.CodeInvalidRequest, asks, "a body must have either end, which is true, or forbid")
	case len(r.Forbid) > auth.MaxForbidden:
		return r, problem.New(wire.CodeInvalidRequest, "use patterns", "forbid can have at most %d topics and patterns; got %d", auth.MaxForbidden, len(r.Forbid))
	case (len(r.Forbid) > 0) != (given.UntilMS != nil):
		return r, problem.New(wire.CodeInvalidRequest, asks, "until_ms must come with topics in forbid, and only with them")
	case r.Reason != "" && !r.End && len(r.Forbid) == 0:
		return r, problem.New(wire.CodeInvalidRequest, "omit reason", "reason must come with end, or with topics in forbid")
	case len(r.Reason) > auth.MaxReasonBytes || strings.ContainsFunc(r.Reason, unicode.IsControl):
		return r, problem.New(wire.CodeInvalidRequest, "shorten it, and write it on one line", "reason must have at most %d bytes, without control characters", auth.MaxReasonBytes)
	}
	named := make(map[string]bool, len(r.Forbid))
	for _, name := range r.Forbid {
		switch err := wire.CheckPattern(name); {
		case err != nil:
			return r, problem.New(wire.CodeInvalidTopic, "see PROTOCOL.md for the rules of names", "%v", err)
		case wire.ReservedTopic(name):
			return r, problem.New(wire.CodeReservedTopic, "forbid the topic that it is about", "topic %s is reserved for the daemon", wire.Quote(name))
		case named[name]:
			return r, problem.New(wire.CodeInvalidRequest, "list each topic once", "topic %s is listed twice", wire.Quote(name))
		}
		named[name] = true
	}
	return r, nil
}
