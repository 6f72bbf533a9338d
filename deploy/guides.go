// Package deploy holds the guide for operators, and files to deploy the daemon with.
package deploy

import _ "embed"

// Guide is the text of README.md, the guide for operators.
//
//go:embed README.md
var Guide string
