package limit

import "context"

// Unlimited admits every call at once.
type Unlimited struct{}

// Admit admits.
func (Unlimited) Admit(context.Context, Kind, string) (release func(), err error) {
	return func() {}, nil
}
