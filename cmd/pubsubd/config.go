package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/internal/config"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration that serve would run with",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		saidCommand("check", "Say ok and a summary, with warnings, or everything that is wrong (exit code 2)",
			func(s config.Said) string { return "ok\n" + s.Summary() }),
		saidCommand("print", "Print the configuration as a file, with the origin of all that was given", config.Said.YAML),
		saidCommand("env", "Print the configuration as environment variables, quoted for a shell", config.Said.Environment),
		saidCommand("doc", "Print what every setting is, in Markdown",
			func(config.Said) string { return config.Document() }),
	)
	return cmd
}

// saidCommand reads what serve would, given the same flags, and shows it.
func saidCommand(use, short string, show func(config.Said) string) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: usageArgs(cobra.NoArgs)}
	loader := bind(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		said, err := loader.Read(os.Environ())
		if err != nil {
			return usageError{err}
		}
		fmt.Fprint(cmd.OutOrStdout(), show(said))
		return nil
	}
	return cmd
}

// bind gives a command the flags of every setting.
func bind(cmd *cobra.Command) *config.Loader {
	loader := config.Bind(cmd.Flags())
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return seeHelp(cmd, loader.FlagError(err)) })
	return loader
}
