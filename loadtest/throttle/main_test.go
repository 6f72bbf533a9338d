package throttle

import (
	"flag"
	"testing"

	"github.com/pubsubd/pubsubd/internal/leaktest"
)

func TestMain(m *testing.M) {
	// Tests wait for calls more than they compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}
