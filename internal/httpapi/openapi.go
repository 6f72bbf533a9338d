package httpapi

import (
	"bytes"
	_ "embed" // the documents
	"net/http"
	"slices"

	"github.com/pubsubd/pubsubd/internal/app"
)

// Two documents describe every route, of the public listener and of the admin listener, for programs
// that make clients, tests or pages of it. They are two because a client has only one address.
var (
	//go:embed openapi.yaml
	openAPI []byte
	//go:embed openapi-admin.yaml
	adminOpenAPI []byte
)

// typeYAML is the media type of the documents (RFC 9512).
const typeYAML = "application/yaml"

// describe answers with the document of the public listener.
func (a *API) describe(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.Call(r.Context(), c, func() error {
		w.Header().Set("Content-Type", typeYAML)
		a.writeWhole(w, http.StatusOK, openAPI)
		return nil
	})
}

// describeAdmin answers with the document of the admin listener.
func describeAdmin(w http.ResponseWriter, _ *http.Request) {
	writeAdmin(w, http.StatusOK, typeYAML, slices.Clip(bytes.TrimSpace(adminOpenAPI)))
}
