package loadtest

import (
	"flag"
	"os"
	"testing"

	"github.com/pubsubd/pubsubd/internal/leaktest"
)

// The test binary is also the server that tests start as a child.
func TestMain(m *testing.M) {
	if role := os.Getenv("LOADTEST_CHILD"); role != "" {
		os.Exit(childMain(role))
	}
	// Tests wait for schedules more than they compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}
