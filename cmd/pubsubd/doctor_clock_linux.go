package main

import "golang.org/x/sys/unix"

// clockIsSynchronised reports whether a time service keeps the kernel's clock (adjtimex(2)).
func clockIsSynchronised() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, err
}
