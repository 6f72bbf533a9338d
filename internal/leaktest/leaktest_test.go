package leaktest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

// tests are a package's.
type tests func() (code int)

func (t tests) Run() int { return t() }

// A goroutine that was told to end is waited for, however busy the machine is.
func TestGoroutinesThatEndLate(t *testing.T) {
	ended := make(chan struct{})
	leave := tests(func() int {
		time.AfterFunc(time.Second, func() { close(ended) })
		go func() { <-ended }()
		return 0
	})
	require.Zero(t, patient{leave, time.Minute}.Run())
	select {
	case <-ended:
	default:
		require.Fail(t, "goleak would find what is about to end")
	}
}

// One that does not end is left to goleak, and nobody waits after tests that failed.
func TestGoroutinesThatStay(t *testing.T) {
	stay := make(chan struct{})
	defer close(stay)
	leave := func(code int) tests {
		return func() int {
			go func() { <-stay }()
			return code
		}
	}
	require.Zero(t, patient{leave(0), time.Millisecond}.Run())
	require.Equal(t, 1, patient{leave(1), time.Hour}.Run())
}
