//go:build linux && packaging

package deploy_test

import (
	"os/exec"
	"syscall"
)

// command is what would run in the image's container.
func (i *image) command(arguments []string) *exec.Cmd {
	return &exec.Cmd{
		Path: arguments[0], Args: arguments, Dir: "/", Env: []string{},
		SysProcAttr: &syscall.SysProcAttr{
			Chroot:     i.root,
			Credential: &syscall.Credential{Uid: uint32(i.user), Gid: uint32(i.user)},
		},
	}
}
