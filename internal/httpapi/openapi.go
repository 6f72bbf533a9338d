package httpapi

import (
	_ "embed" // the document
	"net/http"

	"github.com/pubsubd/pubsubd/internal/app"
)

// openAPI describes every route of both listeners for programs that make clients,
// tests or pages of it.
//
//go:embed openapi.yaml
var openAPI []byte

// describe answers with the document. RFC 9512 names its type.
func (a *API) describe(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.Call(r.Context(), c, func() error {
		w.Header().Set("Content-Type", "application/yaml")
		a.writeWhole(w, http.StatusOK, openAPI)
		return nil
	})
}
