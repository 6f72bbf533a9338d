package pubsub

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain finds goroutines that outlive the tests. What has been told to end may take
// longer to do so on a busy machine than the half second that goleak has for it.
func TestMain(m *testing.M) {
	code := m.Run()
	for deadline := time.Now().Add(20 * time.Second); code == 0; {
		leak := goleak.Find()
		if leak == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, leak)
			code = 1
		}
	}
	os.Exit(code)
}
