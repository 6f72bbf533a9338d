package listen

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// refusalTimeout bounds the write of a refusal. A new connection takes it at once.
const refusalTimeout = 10 * time.Millisecond

// refuse closes a connection. A client that backs off gets the reason first. A client
// that reconnects again and again gets a reset.
func (l *Listener) refuse(c net.Conn, err error) {
	l.cfg.Metrics.Ended(metrics.Refused)
	var reason []byte
	refusal, ok := errors.AsType[*limit.Refusal](err)
	if ok && refusal.Hold == 0 {
		reason = l.refusal(refusal.Problem)
	}
	tcp, isTCP := c.(*net.TCPConn)
	switch {
	case len(reason) > 0:
		_ = c.SetDeadline(time.Now().Add(refusalTimeout))
		_, _ = c.Write(reason)
		if isTCP {
			setOption(tcp, finWait2, -1)
		}
	case isTCP:
		_ = tcp.SetLinger(0) // the kernel sends a reset and frees everything
	}
	_ = c.Close()
	if ok && refusal.Limit == "connections" { // the operator can mend this limit, unlike that of one address
		l.full.Do(func() {
			l.cfg.Log.Warn("connections are refused because limits.connections is reached: raise it; if it is auto, raise the limit of open files (ulimit -n, LimitNOFILE)",
				zap.String("listener", l.cfg.Name), zap.Int("limits.connections", l.cfg.Limiter.Config().Connections))
		})
	}
}

// refusal returns what a client gets before its connection closes; nil: nothing.
func (l *Listener) refusal(why *wire.Problem) []byte {
	if l.cfg.Refusal == nil || l.tls != nil {
		return nil
	}
	return l.cfg.Refusal(why)
}

// HTTPRefusal returns the answer to the request that a refused client is about to send.
func HTTPRefusal(p *wire.Problem) []byte {
	return ProblemAnswer(limit.Spread(p), "Cache-Control: no-store, no-transform\r\n",
		"Date: "+time.Now().UTC().Format(http.TimeFormat)+"\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n")
}

// ProblemAnswer returns a complete HTTP/1.1 answer whose body is p. before and after are
// the lines of header fields around those that belong to the body.
func ProblemAnswer(p *wire.Problem, before, after string) []byte {
	body, err := json.Marshal(p)
	if err != nil {
		panic("BUG: a problem does not marshal: " + err.Error())
	}
	if retry := limit.RetryAfter(p); retry > 0 {
		after = fmt.Sprintf("Retry-After: %d\r\n%s", retry, after)
	}
	if challenge := Challenge(p); challenge != "" {
		after = "WWW-Authenticate: " + challenge + "\r\n" + after
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n%sContent-Length: %d\r\nContent-Type: %s\r\n%s\r\n%s\n",
		p.Status, http.StatusText(p.Status), before, len(body)+len("\n"), wire.ProblemType, after, body)
}

// Challenge returns the WWW-Authenticate field for a problem with status 401 (RFC 9110,
// section 11.6.1; RFC 6750, section 3), and "" for others.
func Challenge(p *wire.Problem) string {
	switch p.Code {
	case wire.CodeUnauthorized:
		return `Bearer realm="pubsubd"`
	case wire.CodeTokenExpired:
		return `Bearer realm="pubsubd", error="invalid_token"`
	}
	return ""
}
