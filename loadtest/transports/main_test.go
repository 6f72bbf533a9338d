package transports

import (
	"testing"

	"github.com/pubsubd/pubsubd/loadtest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
