package request

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestARequestAboutASubject(t *testing.T) {
	names := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`"a%d"`, i))
		}
		return strings.Join(all, ",")
	}
	for body, want := range map[string]wire.Code{
		`{"subject":"ann","end":true}`:                                                              "",
		`{"subject":"ann","end":true,"reason":"bye"}`:                                               "",
		`{"subject":"ann","forbid":["chat.42","log.*"],"until_ms":9,"reason":"spam"}`:               "",
		`{"subject":"ann","forbid":[]}`:                                                             "",
		`{"subject":"ann","forbid":[` + names(64) + `],"until_ms":9}`:                               "",
		`{"subject":"ann","forbid":["a"],"until_ms":9,"reason":"` + strings.Repeat("x", 256) + `"}`: "",

		`{}`: wire.CodeInvalidRequest, `[]`: wire.CodeInvalidRequest, ``: wire.CodeInvalidRequest,
		`{"subject":"ann"}`:                                                        wire.CodeInvalidRequest,
		`{"subject":"ann","end":false}`:                                            wire.CodeInvalidRequest,
		`{"subject":"","end":true}`:                                                wire.CodeInvalidRequest,
		`{"end":true}`:                                                             wire.CodeInvalidRequest,
		`{"subject":"a\u0007","end":true}`:                                         wire.CodeInvalidRequest,
		`{"subject":"ann","end":true,"forbid":[]}`:                                 wire.CodeInvalidRequest,
		`{"subject":"ann","end":true,"until_ms":9}`:                                wire.CodeInvalidRequest,
		`{"subject":"ann","end":true,"until_ms":0}`:                                wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":[],"until_ms":0}`:                               wire.CodeInvalidRequest,
		`{"subject":"ann","end":false,"forbid":["a"],"until_ms":9}`:                wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":["a"]}`:                                         wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":[],"until_ms":9}`:                               wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":[],"reason":"spam"}`:                            wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":null}`:                                          wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":["a"],"until":9}`:                               wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":["a","a"],"until_ms":9}`:                        wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":[` + names(65) + `],"until_ms":9}`:              wire.CodeInvalidRequest,
		`{"subject":"ann","forbid":["a..b"],"until_ms":9}`:                         wire.CodeInvalidTopic,
		`{"subject":"ann","forbid":["_presence.a"],"until_ms":9}`:                  wire.CodeReservedTopic,
		`{"subject":"ann","end":true,"reason":"a\u0007"}`:                          wire.CodeInvalidRequest,
		`{"subject":"ann","end":true,"reason":"` + strings.Repeat("x", 257) + `"}`: wire.CodeInvalidRequest,
	} {
		_, err := SubjectOf([]byte(body))
		if want == "" {
			require.NoError(t, err, body)
			continue
		}
		refused, ok := errors.AsType[*wire.Problem](err)
		require.True(t, ok, "%s: %v", body, err)
		require.Equal(t, want, refused.Code, body)
		require.NotEmpty(t, refused.Remedy, body)
	}
}
