package daemon

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
)

// Secrets that only their owner may read. The requests below have them wherever a request
// holds data.
const (
	secretPayload = "payload-5f0c31"
	secretToken   = "token-81ab77"
	secretKey     = "key-c0ffee"
)

// Session IDs, tokens and payloads are secret. No log entry contains one, even at level
// debug, whether requests succeed or fail.
func TestNoSecretIsEverLogged(t *testing.T) {
	for _, lane := range []string{"handoff", "off"} {
		t.Run(lane, func(t *testing.T) {
			d := start(t, func(c *config.Config) {
				c.Log.Level, c.Log.Access, c.Lane = "debug", 1, lane
				c.MessageBytes, c.Session.InactivityTimeout, c.DrainWindow = 1000, 200*time.Millisecond, 200*time.Millisecond
			})
			secrets := []string{secretPayload, secretToken, secretKey}
			inactive := d.open(`"a"`).Session
			polled := d.open(`"a","b"`).Session
			secrets = append(secrets, inactive, polled, inactive[:len(inactive)-2])

			for _, request := range awkward(polled) {
				d.sendRaw(request)
			}
			d.replaceAPoll(polled)
			require.GreaterOrEqual(t, d.metric("pubsubd_messages_published_total"), 4.0, "of the requests, some are good")
			require.Eventually(t, func() bool {
				_, ended := d.metricIfAny(`pubsubd_sessions_ended_total{reason="inactive"}`)
				return ended
			}, surely, 10*time.Millisecond)
			d.sendRaw("GET /v1/sessions/" + inactive + "/poll?ack=0 HTTP/1.1\r\nHost: h\r\n\r\n")
			d.reloadWith(func(c *config.Config) { c.Broker.HistoryAge, c.Session.InactivityTimeout = time.Hour, time.Hour })

			d.servers.public.ErrorLog.Print("net/http whispers")
			d.log.Debug("the daemon whispers")
			stuck := d.open(`"a"`).Session
			secrets = append(secrets, stuck)
			d.leaveInTheMiddle(stuck)
			require.NoError(t, d.wait())
			d.wantNone(secrets)
			for _, who := range []string{"net/http", "the daemon"} {
				require.Len(t, d.logged.FilterMessage(who+" whispers").All(), 1, "all that is said is seen here")
			}
		})
	}
}

// wantNone checks that no log entry contains a secret.
func (d *running) wantNone(secrets []string) {
	d.Helper()
	require.NotEmpty(d, d.logged.All())
	for _, e := range d.logged.All() {
		text := fmt.Sprint(e.LoggerName, e.Message, e.ContextMap(), e.Stack)
		for _, secret := range secrets {
			require.NotContains(d, text, secret)
		}
	}
}

// awkward returns raw requests, valid and invalid, with secrets in every place.
func awkward(session string) []string {
	var requests []string
	add := func(method, target, headers, body string) {
		requests = append(requests, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s",
			method, target, secretToken, headers, len(body), body))
	}
	const asJSON, asText = "Content-Type: application/json\r\n", "Content-Type: text/plain\r\n"
	publish, poll := "/v1/topics/a/messages?key="+secretKey, "/v1/sessions/"+session
	add("POST", publish, asJSON, `{"n":"`+secretPayload+`"}`)
	add("POST", publish, asJSON, `{"n":"`+secretPayload)
	add("POST", publish, asText, secretPayload)
	add("POST", publish, asText, secretPayload+"\xff")
	add("POST", publish, asText, strings.Repeat(secretPayload, 100))
	add("POST", publish, "Content-Type: "+secretPayload+"\r\n", "1")
	add("POST", publish, "Content-Encoding: "+secretPayload+"\r\n", "1")
	add("POST", publish, "Idempotency-Key: \""+secretKey+"\r\n", "1")
	add("POST", publish, "Origin: https://refused.example/"+secretPayload+"\r\n", "1")
	add("POST", publish+"&token="+secretToken, asJSON, "1")
	add("POST", publish+"&ttl="+secretPayload, asJSON, "1")
	add("POST", "/v1/topics/"+secretPayload+"..b/messages", asJSON, "1")
	add("POST", "/v1/messages", asJSON, `[{"topic":"a","data":"`+secretPayload+`"},{"topic":"..","data":"`+secretPayload+`"}]`)
	add("GET", poll+"/poll?ack=0;token="+secretToken, "", "")
	add("GET", poll+"/poll?ack="+secretToken, "", "")
	add("GET", poll+"/poll?ack=99", "", "")
	add("GET", poll+"/poll?ack=0&mode="+secretToken, "", "")
	add("GET", poll+"/poll", "Accept: "+secretPayload+"\r\n", "")
	add("GET", poll+"/poll?ack=%zz"+secretToken, "", "")
	add("GET", poll+"%zz/poll", "", "")
	add("GET", poll+"x/poll?ack=0", "", "")
	add("GET", poll+"/nothing/"+secretToken, "", "")
	add("GET", "//v1/../v1/sessions/"+session+"/poll", "", "")
	add("BREW", poll+"/poll", "", "")
	add("GET", poll+"/poll?ack=0", "", secretPayload)
	add("PATCH", poll, asJSON, `{"add":["`+secretPayload+`..x"]}`)
	add("PATCH", poll, asJSON, `{"`+secretPayload+`":1}`)
	add("GET", "/v1/poll?topic="+secretPayload+"@"+session, "", "")
	add("GET", "/v1/poll?topic=a&token="+secretToken, "", "")
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for _, more := range []string{"", "Origin: https://refused.example\r\n", "Sec-WebSocket-Extensions: ,\r\n", "Sec-WebSocket-Protocol: \"" + secretToken + "\r\n"} {
		add("GET", "/v1/ws?topic=a", upgrade+"Sec-WebSocket-Protocol: pubsubd.v1, bearer."+secretToken+"\r\n"+more, "")
	}
	add("GET", "/v1/ws?session=nobody&ack=0", upgrade+"Sec-WebSocket-Protocol: bearer."+secretToken+"\r\n", "")
	return append(requests,
		"GET "+poll+"/poll?ack=0 HTTP/9.9\r\nHost: h\r\n\r\n",
		"GET "+poll+"/poll?ack=0 HTTP/1.1\r\nHost: h\r\nHost: "+secretPayload+"\r\n\r\n",
		"GET "+poll+"/poll?ack=0 HTTP/1.1\r\nHost: h\r\n"+secretToken+"\r\n\r\n",
		"GET "+poll+"/poll?ack=0 HTTP/1.1\r\nHost: h\r\nX-"+secretToken+" : 1\r\n\r\n",
		"GET "+poll+"/poll?ack=0 HTTP/1.1\r\nHost: h\r\nCookie: "+strings.Repeat(secretToken, 4000)+"\r\n\r\n",
		"POST "+publish+" HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"+secretPayload,
		"POST "+publish+" HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"+secretPayload+"\r\n",
		"POST "+publish+" HTTP/1.1\r\nHost: h\r\nContent-Length: "+secretPayload+"\r\n\r\n",
		secretPayload+"\r\n\r\n",
	)
}

// sendRaw sends a request on a new connection, and after a poll, when the lane may have
// the connection. It reads the answers.
func (d *running) sendRaw(request string) {
	d.Helper()
	for _, before := range []string{"", "GET /v1/poll?topic=z HTTP/1.1\r\nHost: h\r\n\r\n"} {
		conn, err := net.Dial("tcp", d.PublicAddr())
		require.NoError(d, err)
		in := bufio.NewReader(conn)
		if before != "" {
			_, err = io.WriteString(conn, before)
			require.NoError(d, err)
			d.readAnswer(in)
		}
		_, _ = io.WriteString(conn, request) // it may be refused before its end
		require.NoError(d, conn.SetReadDeadline(time.Now().Add(surely)))
		d.readAnswer(in)
		conn.Close()
	}
}

// readAnswer reads one answer, or the end of the connection.
func (d *running) readAnswer(in *bufio.Reader) {
	d.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return // a closed connection is an answer, too
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}

// replaceAPoll has one poll end another of the same session.
func (d *running) replaceAPoll(session string) {
	d.Helper()
	poll := "GET /v1/sessions/" + session + "/poll?ack=0 HTTP/1.1\r\nHost: h\r\n\r\n"
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(d, err)
	defer conn.Close()
	_, err = io.WriteString(conn, poll)
	require.NoError(d, err)
	d.readAnswer(bufio.NewReader(conn))
	d.sendRaw(poll)
}

// leaveInTheMiddle begins a publish whose body never comes, and a stream that lasts until
// the drain ends.
func (d *running) leaveInTheMiddle(session string) {
	d.Helper()
	for _, begin := range []string{
		"POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n" + secretPayload,
		"GET /v1/sessions/" + session + "/poll?ack=0&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", d.PublicAddr())
		require.NoError(d, err)
		d.Cleanup(func() { conn.Close() })
		_, err = io.WriteString(conn, begin)
		require.NoError(d, err)
	}
	d.waitParked(1)
}
