// Package openapi holds the descriptions of the HTTP interface for tools that make
// clients, tests or pages of it. They are apart from package wire because a Go client
// does not need them.
package openapi

import _ "embed" // the documents

// The documents, as OpenAPI 3.1 in YAML. There are two because each listener has an
// address of its own. Components with the same name are the same in both. Do not
// change the bytes.
var (
	//go:embed openapi.yaml
	Public []byte // what clients and applications reach, under /v1
	//go:embed openapi-admin.yaml
	Admin []byte // what operators reach
)
