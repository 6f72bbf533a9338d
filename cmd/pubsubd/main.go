// Command pubsubd pushes messages to web clients over HTTP long polling, and
// measures how many of them a machine holds.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// version is set by the linker; see the Makefile.
var version = ""

// Exit codes. Load tests have two more (see the package loadtest): 3 for an
// objective that was missed and 4 for a generator that was the bottleneck.
const (
	exitRunTime = 1
	exitUsage   = 2
)

func main() {
	root := &cobra.Command{
		Use:           "pubsubd",
		Short:         "Push messages to web clients, and measure how many a server holds",
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return checkWords(cmd) }
	root.AddCommand(serveCommand(), configCommand(), publishCommand(), subscribeCommand(), topicsCommand(), sessionsCommand(),
		tokenCommand(), keyCommand(), revokeCommand(), storeCommand(),
		healthCommand(), doctorCommand(), loadtestCommand(), floorCommand(), versionCommand(), manCommand())
	os.Exit(exitCode(root.Execute()))
}

// usageError is a command line that cannot be obeyed as it stands.
type usageError struct{ error }

// exitError ends the process with a code of its own; its text is on the terminal
// already.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// exitWith ends the process with the code.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return exitError{code}
}

// exitCode tells people what went wrong, and programs by the code.
func exitCode(err error) int {
	if err == nil || isClosedOutput(err) {
		return 0
	}
	if exit, ok := errors.AsType[exitError](err); ok {
		return exit.code
	}
	said := make(chan struct{})
	go func() {
		fmt.Fprintln(os.Stderr, "pubsubd:", err)
		close(said)
	}()
	select {
	case <-said:
	case <-time.After(time.Second): // a full pipe that nobody reads holds no process
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitRunTime
}

// isClosedOutput reports whether err says that the reader of standard output has left, as
// head does. A command then ends quietly.
func isClosedOutput(err error) bool {
	failed, ok := errors.AsType[*fs.PathError](err)
	return ok && failed.Path == os.Stdout.Name() && errors.Is(failed.Err, syscall.EPIPE)
}

// usageArgs makes the error of a command's argument check a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return seeHelp(cmd, wrongArgs(cmd, args))
		}
		return nil
	}
}

// wrongArgs names the argument that is missing or too much, as Use does.
func wrongArgs(cmd *cobra.Command, args []string) error {
	wanted := strings.Fields(cmd.Use)[1:]
	whole := cmd.CommandPath() + " " + strings.Join(wanted, " ")
	switch {
	case cmd.HasAvailableSubCommands():
		return unknownCommand(cmd, args[0])
	case len(wanted) == 0:
		return fmt.Errorf("%q is one argument too many: %s takes none%s", args[0], cmd.CommandPath(), forFlag(cmd, args[0]))
	case len(args) < len(wanted):
		return fmt.Errorf("%s is missing in: %s", strings.TrimSuffix(wanted[len(args)], "..."), whole)
	}
	return fmt.Errorf("%q is one argument too many for: %s; put quotes around arguments with spaces", args[len(wanted)], whole)
}

// forFlag adds how to give an argument to a flag before it whose value is optional.
func forFlag(cmd *cobra.Command, arg string) (hint string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" && f.Value.Type() != "bool" {
			hint = fmt.Sprintf("; did you mean --%s=%s?", f.Name, arg)
		}
	})
	return hint
}

// seeHelp makes err a usage error that says where the usage is.
func seeHelp(cmd *cobra.Command, err error) error {
	return usageError{fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())}
}

// versionText is what was linked in, or what the go command knows.
func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "dev"
}
