package pubsub

import "net/http"

// NewFake gives the examples a daemon.
func NewFake() http.Handler { return newFake() }
