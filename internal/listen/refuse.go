package listen

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// refusalTimeout bounds the write of a refusal. A new connection takes it at once.
const refusalTimeout = 10 * time.Millisecond

// refuse ends a connection, and tells a client that backs off why. A client that keeps
// coming gets a reset.
func (l *Listener) refuse(c *net.TCPConn, err error) {
	l.cfg.Metrics.Ended(metrics.Refused)
	var said []byte
	why, ok := errors.AsType[*limit.Refusal](err)
	if ok && why.Hold == 0 && l.cfg.Refusal != nil && l.tls == nil {
		said = l.cfg.Refusal(why.Problem)
	}
	if len(said) == 0 {
		_ = c.SetLinger(0) // the kernel keeps nothing of it
	} else {
		_ = c.SetDeadline(time.Now().Add(refusalTimeout))
		_, _ = c.Write(said)
		skipFinWait2(c)
	}
	_ = c.Close()
	if ok && why.Limit == "connections" { // the operator's to mend, unlike what one address has too much of
		l.full.Do(func() {
			l.cfg.Log.Warn("limits.connections is full, connections are refused: raise it, or where it is auto the limit of open files (ulimit -n, LimitNOFILE)",
				zap.String("listener", l.cfg.Name), zap.Int("limits.connections", l.cfg.Limiter.Config().Connections))
		})
	}
}

// HTTPRefusal answers the request that a client is about to send.
func HTTPRefusal(p *wire.Problem) []byte {
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
