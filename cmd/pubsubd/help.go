package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/deploy"
	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A guide is a document that the binary has.
type guide struct{ name, about, text string }

func guides() []guide {
	return []guide{
		{"protocol", "the protocol, as a specification", wire.Protocol},
		{"clients", "how to write a client", wire.Clients},
		{"operating", "install, configure and run the daemon, for operators", deploy.Guide},
		{"loadtest", "measure a server; for the command, see pubsubd loadtest --help", loadtest.Guide},
	}
}

// helpCommand explains a command, or prints a guide.
func helpCommand() *cobra.Command {
	long := "Explain a command, as its --help does, or print one of these guides in Markdown:\n"
	names := []string{}
	for _, g := range guides() {
		long += fmt.Sprintf("\n  %-10s %s", g.name, g.about)
		names = append(names, g.name)
	}
	return &cobra.Command{
		Use:     "help [COMMAND|GUIDE]",
		Short:   "Explain a command, or print a guide: " + strings.Join(names, ", "),
		Long:    long,
		Example: "  pubsubd help publish\n  pubsubd help protocol | less",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			choices := commandNames(about)
			if about == cmd.Root() {
				choices = append(choices, names...)
			}
			return choices, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return help(cmd, args) },
	}
}

func help(cmd *cobra.Command, args []string) error {
	all := guides()
	if i := slices.IndexFunc(all, func(g guide) bool { return slices.Equal(args, []string{g.name}) }); i >= 0 {
		_, err := io.WriteString(cmd.OutOrStdout(), all[i].text)
		return err
	}
	about, rest, err := cmd.Root().Find(args)
	if len(rest) > 0 {
		return seeHelp(cmd, fmt.Errorf("no command or guide is called %q", rest[0]))
	}
	if err != nil {
		return seeHelp(cmd, err)
	}
	about.InitDefaultHelpFlag()
	about.InitDefaultVersionFlag()
	return about.Help()
}
