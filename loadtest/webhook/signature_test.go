package webhook

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The example of the Standard Webhooks specification's reference libraries.
func TestSignaturesOfStandardWebhooks(t *testing.T) {
	key := KeyOf("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	body := []byte(`{"test": 2432232314}`)
	now := time.Unix(1614265330, 0)
	h := http.Header{}
	h.Set("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	h.Set("webhook-timestamp", "1614265330")
	h.Set("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	require.NoError(t, Check(h, body, key, now))

	require.ErrorContains(t, Check(h, []byte("{}"), key, now), "no valid signature")
	require.ErrorContains(t, Check(h, body, []byte("other"), now), "no valid signature")
	require.ErrorContains(t, Check(h, body, key, now.Add(time.Hour)), "1h0m0s")
	h.Set("webhook-signature", "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	require.NoError(t, Check(h, body, key, now), "one of several")
	h.Del("webhook-id")
	require.ErrorContains(t, Check(h, body, key, now), "webhook-id")
}

func TestSecrets(t *testing.T) {
	require.Equal(t, []byte("plain text of 24 or more"), KeyOf("plain text of 24 or more"))
	require.Len(t, KeyOf(NewSecret()), 32)
	require.NotEqual(t, NewSecret(), NewSecret())
}
