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
		showCommand("check", "Check the configuration: print ok and a summary with warnings, or all errors (exit code 2)",
			func(s config.Loaded) string { return "ok\n" + s.Summary() }),
		showCommand("print", "Print the configuration as a file, with the origin of each setting that was given", config.Loaded.YAML),
		showCommand("doc", "Print a description of every setting, in Markdown",
			func(config.Loaded) string { return config.Document() }),
	)
	return cmd
}

// showCommand reads what serve would, given the same flags, and shows it.
func showCommand(use, short string, show func(config.Loaded) string) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: usageArgs(cobra.NoArgs)}
	loader := config.Bind(cmd.Flags())
	groupSettings(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		loaded, err := loader.Load(os.Environ())
		if err != nil {
			return usageError{err}
		}
		fmt.Fprint(cmd.OutOrStdout(), show(loaded))
		return nil
	}
	return cmd
}
