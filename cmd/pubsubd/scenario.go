package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest/scenarios"
)

// scenariosCommand lists the scenario files that come with the binary, or shows
// one.
func scenariosCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "scenarios [NAME]",
		Short: "List the presets, or print one as a scenario file",
		Example: `  pubsubd loadtest scenarios
  pubsubd loadtest scenarios example > mine.yaml && pubsubd loadtest --scenario mine.yaml`,
		Args:              usageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(scenarios.Names(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listScenarios(os.Stdout)
			}
			text, err := scenarios.Text(args[0])
			if err != nil {
				return usageError{err}
			}
			_, err = os.Stdout.Write(text)
			return err
		},
	}
}

func listScenarios(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, name := range scenarios.Names() {
		suite, err := scenarios.Preset(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%s\t%d runs\t%s\n", name, len(suite.Runs), suite.Title)
	}
	return t.Flush()
}
