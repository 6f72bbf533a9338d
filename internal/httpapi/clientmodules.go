package httpapi

import (
	"net/http"
	"strings"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/pkg/pubsubjs"
)

// module answers with a module of the JavaScript client. Every page may load it, and needs
// no token: a <script> can send none. Browsers keep it and ask each time whether it changed.
func (a *API) module(m *pubsubjs.Module) handler {
	return func(w http.ResponseWriter, r *http.Request, c app.Caller) error {
		if err := a.App.Reject(c, nil); err != nil {
			return err
		}
		h := w.Header()
		h.Set("Cache-Control", "public, no-cache")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Vary", "Accept-Encoding")
		body, tag := m.Text, `"`+m.Hash+`"`
		if acceptsOf(r).Gzip {
			h.Set("Content-Encoding", "gzip")
			body, tag = m.Gzip(), `"`+m.Hash+`-gzip"` // another representation has another strong tag
		}
		h.Set("ETag", tag)
		if hasTag(r.Header["If-None-Match"], tag) {
			h.Del("Content-Encoding")
			a.allowWriting(w)
			w.WriteHeader(http.StatusNotModified)
			return nil
		}
		h.Set("Content-Type", "text/javascript; charset=utf-8")
		a.writeWhole(w, http.StatusOK, body)
		return nil
	}
}

// hasTag reports whether lists of entity tags have this tag or "*". The comparison is weak:
// a proxy that compresses makes tags weak (RFC 9110, section 13.1.2).
func hasTag(lists []string, tag string) bool {
	for _, list := range lists {
		for one := range strings.SplitSeq(list, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == tag {
				return true
			}
		}
	}
	return false
}
