package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/internal/config"
)

// groupSettings makes the help of a command with the flags of config.Bind show its own flags
// first, and refer to the help of serve for the others. The help of serve describes the flags
// that most installations need, and lists the others in groups.
func groupSettings(cmd *cobra.Command) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		fmt.Fprintf(out, "Usage:\n  %s\n", cmd.UseLine())
		if cmd.Example != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
		}
		if cmd.Name() != serveName {
			fmt.Fprintf(out, "\nFlags:\n%s\nThe flags of settings, such as --config and --listen-public, are those of pubsubd %s:\nsee pubsubd %s --help.\n",
				ownFlags(cmd).FlagUsages(), serveName, serveName)
			return nil
		}
		for i, g := range config.FlagGroups(cmd.LocalFlags()) {
			usages := names(g.Flags)
			if i == 0 {
				usages = firstSentences(g.Flags).FlagUsagesWrapped(helpWidth)
			}
			fmt.Fprintf(out, "\n%s\n%s%s", g.Title, usages, g.More)
		}
		fmt.Fprintf(out, "\nOther flags:\n%s\n%s", ownFlags(cmd).FlagUsages(), moreOnSettings)
		return nil
	})
}

const serveName = "serve"

// helpWidth is the length of the lines of help.
const helpWidth = 100

const moreOnSettings = `pubsubd config doc describes every setting: what it does, its default, its form, and whether a
reload changes it. For example, pubsubd config doc | grep poll.heartbeat explains --poll-heartbeat.
pubsubd help operating is the guide for operators.
`

// names returns the names of flags, in lines of at most helpWidth characters.
func names(flags *pflag.FlagSet) string {
	var b strings.Builder
	width := 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name := "  --" + f.Name
		if width += len(name); width > helpWidth {
			b.WriteByte('\n')
			width = len(name)
		}
		b.WriteString(name)
	})
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	return b.String()
}

// ownFlags returns the flags of cmd that are not settings.
func ownFlags(cmd *cobra.Command) *pflag.FlagSet {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = cmd.Flags().SortFlags
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !config.IsSetting(f) {
			own.AddFlag(f)
		}
	})
	return own
}

// firstSentences returns copies of the flags with only the first sentences of their texts.
func firstSentences(flags *pflag.FlagSet) *pflag.FlagSet {
	short := pflag.NewFlagSet("", pflag.ContinueOnError)
	short.SortFlags = false
	flags.VisitAll(func(f *pflag.Flag) {
		one := *f
		first, _, _ := strings.Cut(one.Usage, ". ")
		one.Usage = strings.TrimSuffix(first, ".") + "."
		short.AddFlag(&one)
	})
	return short
}
