package cors

import (
	"net/url"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// refusals logs each refused origin, or name in Host, once a minute. A page sees only the
// browser's generic error, so the operator has to be told. All methods may be called
// concurrently.
type refusals struct {
	log *zap.Logger

	mu     sync.Mutex           // guards logged
	logged map[string]time.Time // when each was logged; at most maxRefused
}

const (
	// refusedEvery is how often the same origin or name is logged.
	refusedEvery = time.Minute

	// maxRefused bounds the origins, and the names, that are logged in a minute: any client
	// can send any.
	maxRefused = 100

	// maxOriginBytes is enough for a scheme, a DNS name of 253 bytes, and a port.
	maxOriginBytes = 300
)

func newRefusals(log *zap.Logger) *refusals {
	return &refusals{log: log.Named("cors"), logged: make(map[string]time.Time)}
}

// isDue reports whether to log an origin or a name, and notes that it was logged.
func (r *refusals) isDue(text string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.logged[text]; ok && now.Sub(at) < refusedEvery {
		return false
	}
	if len(r.logged) >= maxRefused {
		for other, at := range r.logged {
			if now.Sub(at) >= refusedEvery {
				delete(r.logged, other)
			}
		}
		if len(r.logged) >= maxRefused {
			return false
		}
	}
	r.logged[text] = now
	return true
}

// opaque is the Origin of a page that has none, such as a file or a sandboxed frame.
const opaque = "null"

// isOrigin reports whether a text is null, or the origin of localhost, an IP address or a name
// with a dot. Anything else could be a secret that a client put into the wrong header.
func isOrigin(text string) bool {
	if text == opaque {
		return true
	}
	u, err := url.Parse(text)
	if err != nil || len(text) > maxOriginBytes || u.Scheme+"://"+u.Host != text || len(u.Scheme) > maxLabelBytes {
		return false
	}
	name := nameOf(u.Host)
	return isLoggable(name) && (name == "localhost" || strings.ContainsAny(name, ".:"))
}
