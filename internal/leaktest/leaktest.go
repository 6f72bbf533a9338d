// Package leaktest finds goroutines that outlive the tests of a package.
package leaktest

import (
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end. On a busy machine, goleak's half second
// is too short.
const patience = 20 * time.Second

// Main runs the tests of a package from its TestMain, and exits. It fails if a goroutine
// is left over.
func Main(m goleak.TestingM) { goleak.VerifyTestMain(patient{m, patience}) }

// patient waits after the tests until their goroutines have ended, for at most patience.
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
