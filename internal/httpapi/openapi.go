package httpapi

import (
	_ "embed" // the document
	"net/http"
	"strconv"
)

// openAPI describes every route of both listeners for programs that make clients,
// tests or pages of it.
//
//go:embed openapi.yaml
var openAPI []byte

// describe answers with the document. RFC 9512 names its type.
func (a *API) describe(w http.ResponseWriter, _ *http.Request, _ asker) error {
	a.patience(w)
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Content-Length", strconv.Itoa(len(openAPI)))
	_, _ = w.Write(openAPI) // a client that is gone is not an error
	return nil
}
