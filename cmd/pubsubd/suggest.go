package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagError makes the error of a command's flags a usage error with a suggestion. After an
// unknown command, its name is wrong rather than its flags.
func flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); len(args) > 0 && cmd.HasAvailableSubCommands() {
		return seeHelp(cmd, unknownCommand(cmd, args[0]))
	}
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok && wanted[wrong.GetFlag().Value.Type()] != "" {
		return seeHelp(cmd, fmt.Errorf("--%s %q: want %s", wrong.GetFlag().Name, wrong.GetValue(), wanted[wrong.GetFlag().Value.Type()]))
	}
	return seeHelp(cmd, err)
}

// wanted has what the value of a flag must be, by the flag's type.
var wanted = map[string]string{
	"bool": "true or false", "int": "a whole number", "int64": "a whole number", "uint64": "a whole number, not negative",
	"intSlice": "whole numbers, such as 20,100", "float64": "a number",
	"duration": "a duration, such as 250ms, 90s or 2m", "durationSlice": "durations, such as 200ms,1s",
}

// unknownCommand returns the error for a name that no command below cmd has.
func unknownCommand(cmd *cobra.Command, name string) error {
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		hint = "; did you mean " + near[0] + "?"
	}
	return fmt.Errorf("unknown command %q for %q%s", name, cmd.CommandPath(), hint)
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() || below.Name() == "help" {
			names = append(names, below.Name())
		}
	}
	return names
}

// wordsKey is the annotation of a flag with the words that its value may be.
const wordsKey = "pubsubd_words"

// oneOf lets the value of a flag be one of some words, or a list of them. Shells complete
// the words.
func oneOf[T ~string](cmd *cobra.Command, flag string, words ...T) {
	known := make([]string, len(words))
	for i, w := range words {
		known[i] = string(w)
	}
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	_ = cmd.Flags().SetAnnotation(flag, wordsKey, known)
}

// checkWords returns a usage error if a flag has a value that oneOf does not know. An empty
// value is for the command to judge.
func checkWords(cmd *cobra.Command) error {
	var wrong []error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		words := f.Annotations[wordsKey]
		if words == nil {
			return
		}
		for _, value := range valuesOf(f) {
			if value != "" && !slices.Contains(words, value) {
				wrong = append(wrong, fmt.Errorf("--%s %q: use %s", f.Name, value, strings.Join(words, ", ")))
			}
		}
	})
	if err := errors.Join(wrong...); err != nil {
		return usageError{err}
	}
	return nil
}

func valuesOf(f *pflag.Flag) []string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{f.Value.String()}
}
