// Package logtest tests the contract of broker.Log. The same story runs on every log, and
// on logs for tests that do everything that the contract allows. Add new logs to logs.
package logtest

import (
	"testing"

	"github.com/pubsubd/pubsubd/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
