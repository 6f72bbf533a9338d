// Package limit answers whether a call may go on now. Today there is one answer,
// Unlimited; it is asked in every place that matters.
package limit

import "context"

// Call is a kind of request that can be limited.
type Call string

// The calls.
const (
	Publish     Call = "publish"
	OpenSession Call = "open_session"
	Poll        Call = "poll"
	Other       Call = "other"
)

// Unlimited admits every call at once.
type Unlimited struct{}

// Admit admits. A limiter that has to wait does so until ctx ends, and refuses
// with a *wire.Problem; if ctx has ended before, it returns ctx's error instead of
// waiting. release is called when the call is over.
func (Unlimited) Admit(context.Context, Call, string) (release func(), err error) {
	return func() {}, nil
}
