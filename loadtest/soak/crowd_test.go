package soak

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every way is one of the Go client's, and the polls are done by hand, too.
func TestEveryFormIsAnotherWay(t *testing.T) {
	names := map[string]bool{}
	for form := range subscriberForms {
		names[formName(form)] = true
		if w, byHand := formOf(form); byHand {
			require.NotEmpty(t, w.mode)
			require.Empty(t, w.transport)
			require.Empty(t, w.format)
		}
	}
	require.Len(t, names, subscriberForms)
	for _, w := range ways {
		require.True(t, names["Go client, "+w.String()])
	}
}
