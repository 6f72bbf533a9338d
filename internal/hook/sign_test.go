package hook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

// The example from the tests of the libraries of Standard Webhooks.
const (
	exampleSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	exampleID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	exampleSecond    = 1614265330
	exampleBody      = `{"test": 2432232314}`
	exampleSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func TestTheSignatureIsThatOfStandardWebhooks(t *testing.T) {
	key, err := KeyOf(exampleSecret)
	require.NoError(t, err)
	h := http.Header{}
	sign(h, key, exampleID, time.Unix(exampleSecond, 999), []byte(exampleBody))
	require.Equal(t, exampleID, h.Get("webhook-id"))
	require.Equal(t, "1614265330", h.Get("webhook-timestamp"))
	require.Equal(t, exampleSignature, h.Get("webhook-signature"))
}

// The public library for applications accepts a signature of this package, and no other.
func TestThePublicLibraryVerifiesTheSignature(t *testing.T) {
	const body = `{"type":"publish"}`
	key, err := KeyOf(exampleSecret)
	require.NoError(t, err)
	h := http.Header{}
	sign(h, key, newID(), time.Now(), []byte(body))
	library, err := webhooks.NewWebhook(exampleSecret)
	require.NoError(t, err)
	require.NoError(t, library.Verify([]byte(body), h))
	require.Error(t, library.Verify([]byte(body+" "), h))
	other, err := webhooks.NewWebhookRaw([]byte(strings.Repeat("x", minKey)))
	require.NoError(t, err)
	require.Error(t, other.Verify([]byte(body), h))
}

func TestKeys(t *testing.T) {
	for secret, want := range map[string]string{
		"twenty-four bytes of it.":                        "twenty-four bytes of it.",
		"whsec_dHdlbnR5LWZvdXIgYnl0ZXMgb2YgaXQu":          "twenty-four bytes of it.",
		"whsec" + strings.Repeat("x", 20):                 "whsec" + strings.Repeat("x", 20),
		"":                                                "",
		"twenty-three bytes only":                         "",
		"whsec_dHdlbnR5LXRocmVlIGJ5dGVzIG9ubHk=":          "",
		"whsec_and then what is not base64, however long": "",
		"whsec_dHdlbnR5LWZvdXIg\nYnl0ZXMgb2YgaXQu":        "", // RFC 4648, section 3.3
		"whsec_dHdlbnR5LWZvdXIgYnl0ZXMgb2YgaXQu\r\n":      "",
		"twenty-four bytes of it.\n":                      "",
		" twenty-four bytes of it.":                       "",
		"twenty-four bytes of it,\r\non two lines.":       "",
		"twenty-four bytes of it,\x00 and then a zero":    "",
	} {
		key, err := KeyOf(secret)
		require.Equal(t, want, string(key), "%s", secret)
		require.Equal(t, want == "", err != nil, "%s", secret)
		if err != nil && secret != "" {
			require.NotContains(t, err.Error(), strings.TrimPrefix(secret, keyPrefix))
		}
	}
}

func TestNoTwoCallsHaveTheSameID(t *testing.T) {
	require.NotEqual(t, newID(), newID())
}
