//go:build unix

package loadtest

import "golang.org/x/sys/unix"

// raiseOpenFiles returns the limit in force, having raised it toward needed.
func raiseOpenFiles(needed uint64) (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, err
	}
	soft, hard := uint64(r.Cur), uint64(r.Max) //nolint:unconvert // signed on FreeBSD
	if soft >= needed || hard < needed {
		return max(soft, min(hard, needed)), nil
	}
	r.Cur = r.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return soft, nil // what is in force is what matters
	}
	return hard, nil
}
