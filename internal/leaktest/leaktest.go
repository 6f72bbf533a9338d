// Package leaktest looks for goroutines that outlive a package's tests.
package leaktest

import (
	"time"

	"go.uber.org/goleak"
)

// patience is for what has been told to end: on a busy machine it may take longer to
// do so than the half second that goleak has for it.
const patience = 20 * time.Second

// Main runs the tests of a package, for its TestMain, and exits. It fails those that
// leave a goroutine behind.
func Main(m goleak.TestingM) { goleak.VerifyTestMain(patient{m, patience}) }

// patient are tests that are over when their goroutines have ended, or had so long.
type patient struct {
	goleak.TestingM
	patience time.Duration
}

// Run is part of goleak.TestingM.
func (p patient) Run() int {
	code := p.TestingM.Run()
	for deadline := time.Now().Add(p.patience); code == 0 && time.Now().Before(deadline) && goleak.Find() != nil; {
	}
	return code
}
