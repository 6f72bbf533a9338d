// Package logtest is the contract of broker.Log: the same story is told on every log, and
// on logs for tests alone, which do everything that the contract allows. A new log gets a
// row in logs.
package logtest

import (
	"testing"

	"github.com/pubsubd/pubsubd/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
