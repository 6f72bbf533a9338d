// Package problem makes the errors that the daemon sends to clients.
package problem

import (
	"fmt"
	"maps"
	"net/http"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

var statuses = map[wire.Code]int{
	wire.CodeInvalidRequest:       http.StatusBadRequest,
	wire.CodeInvalidTopic:         http.StatusBadRequest,
	wire.CodeInvalidPosition:      http.StatusBadRequest,
	wire.CodeInvalidBody:          http.StatusBadRequest,
	wire.CodeAckBeyondSent:        http.StatusBadRequest,
	wire.CodeTooManySubscriptions: http.StatusBadRequest,
	wire.CodeReservedTopic:        http.StatusForbidden,
	wire.CodeUnauthorized:         http.StatusUnauthorized,
	wire.CodeTokenExpired:         http.StatusUnauthorized,
	wire.CodeForbidden:            http.StatusForbidden,
	wire.CodeNotFound:             http.StatusNotFound,
	wire.CodeTopicUnknown:         http.StatusNotFound,
	wire.CodeSessionUnknown:       http.StatusNotFound,
	wire.CodeMethodNotAllowed:     http.StatusMethodNotAllowed,
	wire.CodeNotAcceptable:        http.StatusNotAcceptable,
	wire.CodeStaleAck:             http.StatusConflict,
	wire.CodePollReplaced:         http.StatusConflict,
	wire.CodeSessionEnded:         http.StatusGone,
	wire.CodeMessageTooLarge:      http.StatusRequestEntityTooLarge,
	wire.CodeWrongHost:            http.StatusMisdirectedRequest,
	wire.CodeUnsupportedType:      http.StatusUnsupportedMediaType,
	wire.CodeIdempotencyMismatch:  http.StatusUnprocessableEntity,
	wire.CodeLimited:              http.StatusTooManyRequests,
	wire.CodeOverloaded:           http.StatusServiceUnavailable,
	wire.CodeDraining:             http.StatusServiceUnavailable,
	wire.CodeHookFailed:           http.StatusServiceUnavailable,
	wire.CodeInternal:             http.StatusInternalServerError,
}

// Codes returns every code with its status.
func Codes() map[wire.Code]int { return maps.Clone(statuses) }

// New returns a problem with the status and title of its code. It panics on an unknown code.
func New(code wire.Code, remedy, detail string, args ...any) *wire.Problem {
	status, ok := statuses[code]
	if !ok {
		panic("BUG: problem code " + string(code) + " is not listed")
	}
	return &wire.Problem{
		Title:  http.StatusText(status),
		Status: status,
		Code:   code,
		Detail: fmt.Sprintf(detail, args...),
		Remedy: remedy,
	}
}
