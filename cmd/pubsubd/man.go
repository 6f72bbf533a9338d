package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/internal/config"
)

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write a manual page for each command",
		Example: `  pubsubd man /usr/local/share/man/man1
  man pubsubd-publish`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			return writeManual(cmd.Root(), args[0])
		},
	}
}

// writeManual writes the pages of a command and those below it into dir.
func writeManual(cmd *cobra.Command, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, manName(cmd)+".1"), manPage(cmd), 0o644); err != nil {
		return fmt.Errorf("manual pages: %w", err)
	}
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if err := writeManual(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns a command's page in man(7). It says what --help does, line for
// line: cobra's own pages read the texts as Markdown, which they are not, and bring
// two modules to do so.
func manPage(cmd *cobra.Command) []byte {
	cmd.InitDefaultHelpFlag() // cobra gives it only to the command that runs
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"pubsubd %s\"\n", strings.ToUpper(roff(manName(cmd))), roff(versionText()))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	section(&b, "SYNOPSIS", cmd.UseLine())
	section(&b, "DESCRIPTION", cmd.Long)
	section(&b, "OPTIONS", options(cmd))
	section(&b, "EXAMPLES", cmd.Example)
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", roff(strings.Join(related(cmd), ", ")))
	return b.Bytes()
}

// options returns the flags of a command, those of serve in groups.
func options(cmd *cobra.Command) string {
	const width = 78
	if cmd.Name() != serveName {
		return cmd.LocalFlags().FlagUsagesWrapped(width)
	}
	var b strings.Builder
	b.WriteString(ownFlags(cmd).FlagUsagesWrapped(width))
	for _, g := range config.FlagGroups(cmd.LocalFlags()) {
		fmt.Fprintf(&b, "\n%s\n%s%s", g.Title, g.Flags.FlagUsagesWrapped(width), g.More)
	}
	return b.String()
}

// section writes text with the lines that it has.
func section(b *bytes.Buffer, name, text string) {
	if text = strings.TrimRight(text, "\n"); text != "" {
		fmt.Fprintf(b, ".SH %s\n.nf\n%s\n.fi\n", name, roff(text))
	}
}

// roff writes text so that roff shows it as it is: a backslash begins an escape, a
// bare hyphen may become another character, and a line that begins with a dot or a
// quote is a request.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// related returns the pages of the command above and those below.
func related(cmd *cobra.Command) []string {
	var pages []string
	if cmd.HasParent() {
		pages = append(pages, manName(cmd.Parent())+"(1)")
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			pages = append(pages, manName(sub)+"(1)")
		}
	}
	return pages
}
