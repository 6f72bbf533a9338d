package request

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
)

func TestAPlainPollIsReadLikeAnyOther(t *testing.T) {
	for _, query := range []string{
		"ack=0", "ack=17&mode=batch", "ack=1&mode=stream", "ack=1&mode=single", "ack=1&mode=multiple", "ack=007", "ack=999999999999999",
	} {
		plain, ok := plainPoll([]byte(query))
		require.True(t, ok, query)
		require.Equal(t, PollOf([]byte(query+"&"), Accepts{}, &auth.Credentials{}), plain, query)
	}
	for _, query := range []string{
		"", "ack=", "ack=-1", "ack=1000000000000000", "ack=1&", "ack=1&mode=", "ack=1&mode=multipl", "ack=1&x=2", "mode=batch&ack=1", "ack=1&ack=1", "ack=%31",
	} {
		_, ok := plainPoll([]byte(query))
		require.False(t, ok, query)
	}
}
