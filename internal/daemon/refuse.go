package daemon

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A telling makes what a client is told that is refused at the door, before it has
// said anything; nil: nothing.
type telling func(*wire.Problem) []byte

func tellNothing(*wire.Problem) []byte { return nil }

// tellProblem answers the request that a client is about to send.
func tellProblem(p *wire.Problem) []byte {
	p = p.Spread()
	body, err := json.Marshal(p)
	if err != nil {
		panic("BUG: a problem does not marshal: " + err.Error())
	}
	body = append(body, '\n')
	head := "HTTP/1.1 " + strconv.Itoa(p.Status) + " " + http.StatusText(p.Status) +
		"\r\nDate: " + time.Now().UTC().Format(http.TimeFormat) +
		"\r\nCache-Control: no-store, no-transform\r\nX-Content-Type-Options: nosniff" +
		"\r\nContent-Type: " + wire.ProblemType +
		"\r\nContent-Length: " + strconv.Itoa(len(body)) +
		"\r\nRetry-After: " + strconv.FormatInt(p.RetryAfter(), 10) +
		"\r\nConnection: close\r\n\r\n"
	return append([]byte(head), body...)
}

// refusalPatience bounds the write of a refusal. A new connection takes it at once.
const refusalPatience = 10 * time.Millisecond

// refuse ends a connection, and says why to a client that heeds what it is told: who
// goes on and on gets nothing.
func (l *steady) refuse(c *net.TCPConn, why *limit.Refusal) {
	l.ended.Inc()
	var told []byte
	if why != nil && why.Hold == 0 {
		told = l.tell(why.Problem)
	}
	if len(told) == 0 {
		_ = c.SetLinger(0) // the kernel keeps nothing of it
		_ = c.Close()
		return
	}
	_ = c.SetDeadline(time.Now().Add(refusalPatience))
	_, _ = c.Write(told)
	forgetSoon(c)
	_ = c.Close()
}
