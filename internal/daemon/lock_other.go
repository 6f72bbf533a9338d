//go:build !unix || aix || solaris

package daemon

import "os"

// lock locks nothing: where there is no flock nobody keeps two daemons apart.
func lock(*os.File) error { return nil }
