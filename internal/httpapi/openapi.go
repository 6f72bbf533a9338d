package httpapi

import (
	"bytes"
	"net/http"
	"slices"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/pkg/wire/openapi"
)

// typeYAML is the media type of the documents (RFC 9512).
const typeYAML = "application/yaml"

// describe answers with the document of the public listener.
func (a *API) describe(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.Call(r.Context(), c, func() error {
		w.Header().Set("Content-Type", typeYAML)
		a.writeWhole(w, http.StatusOK, openapi.Public)
		return nil
	})
}

// describeAdmin answers with the document of the admin listener.
func describeAdmin(w http.ResponseWriter, _ *http.Request) {
	writeAdmin(w, http.StatusOK, typeYAML, slices.Clip(bytes.TrimSpace(openapi.Admin)))
}
