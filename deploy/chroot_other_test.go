//go:build !linux && packaging

package deploy_test

import "os/exec"

// command is for Linux: who gets here went past the check for it.
func (i *image) command(arguments []string) *exec.Cmd {
	panic("BUG: an image runs on Linux only: " + arguments[0])
}
