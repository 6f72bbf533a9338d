package loadtest

import _ "embed"

// Guide is the text of README.md, the guide to load tests.
//
//go:embed README.md
var Guide string
