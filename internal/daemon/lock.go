package daemon

import (
	"errors"
	"fmt"
	"os"
)

// errLocked is what lock returns while somebody else holds the file.
var errLocked = errors.New("held by another")

// claim makes the state file this daemon's until release, by a lock on a file beside
// it. The state file itself cannot be locked: it comes and goes. The lock ends with
// the process, whatever becomes of that; its file stays, for one that is removed could
// be locked by two, each of another inode.
func (f *stateFile) claim() error {
	path := f.path + ".lock"
	claim, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("%w %s", err, writable)
	}
	if err := lock(claim); err != nil {
		claim.Close()
		if errors.Is(err, errLocked) {
			return fmt.Errorf("%s is another daemon's that runs (wait until it has ended, or give each a --state of its own)", f.path)
		}
		return fmt.Errorf("lock %s: %w (--state names a file on a file system that can lock)", path, err)
	}
	f.claimed = claim
	return nil
}

// release lets another daemon have the state file. It may be called again.
func (f *stateFile) release() {
	if f.claimed != nil {
		f.claimed.Close() // nothing was written
		f.claimed = nil
	}
}
