package pubsub

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// "Session unknown", of which only the status arrived, must not end a subscription:
// asked again, the daemon says it whole.
func TestAProblemThatWasCutOffIsPassing(t *testing.T) {
	whole := `{"title":"Not Found","status":404,"code":"session_unknown"}`
	read := func(body io.Reader) error {
		return readProblem(&http.Response{
			StatusCode: http.StatusNotFound,
			Header:     http.Header{"Content-Type": {wire.ProblemType}},
			Body:       io.NopCloser(body),
		})
	}
	cut, cutBody := io.Pipe()
	go func() {
		_, _ = io.WriteString(cutBody, whole[:20])
		cutBody.CloseWithError(io.ErrUnexpectedEOF)
	}()
	err := read(cut)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.True(t, isTransient(err))
	require.True(t, hasCode(read(strings.NewReader(whole)), wire.CodeSessionUnknown))
}
