package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/loadtest/report"
)

// output is what becomes of a result.
type output struct {
	json  string
	quiet bool
	file  *os.File // that json names, opened before the test; nil if none
}

func (o *output) bind(f *pflag.FlagSet) {
	f.StringVar(&o.json, "json", "", "write the result to this file as JSON; - writes it to standard output, without the table")
	f.BoolVar(&o.quiet, "quiet", false, "show no progress")
}

func (o *output) progress() *report.Progress {
	if o.quiet {
		return report.Quiet(os.Stderr)
	}
	return report.NewProgress(os.Stderr)
}

// show writes a result where it was asked for: as a table, as JSON, or both. A reader of
// standard output that has left is not an error.
func (o *output) show(result any, table func(io.Writer) error) error {
	write := table
	if o.json == "-" {
		write = func(w io.Writer) error { return report.JSON(w, result) }
	}
	if err := write(os.Stdout); err != nil && !isClosedOutput(err) {
		return err
	}
	if o.json == "" || o.json == "-" {
		return nil
	}
	var text strings.Builder
	if err := report.JSON(&text, result); err != nil {
		return err
	}
	return o.fill(text.String())
}

// open finds out before a long test whether its result can be kept. What the file
// holds stays until there is a result.
func (o *output) open() error {
	if o.json == "" || o.json == "-" {
		return nil
	}
	f, err := os.OpenFile(o.json, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	o.file = f
	return nil
}

func (o *output) fill(text string) error {
	if info, err := o.file.Stat(); err == nil && info.Mode().IsRegular() {
		if err := o.file.Truncate(0); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
	}
	if _, err := o.file.WriteString(text); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}

// close leaves no empty file behind.
func (o *output) close() {
	if o.file == nil {
		return
	}
	if info, err := o.file.Stat(); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		_ = os.Remove(o.json)
	}
	_ = o.file.Close()
}

// tryFile finds out before a long test whether a file can be kept. What it holds
// stays until there is another, and no empty file does.
func tryFile(flag, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		_ = os.Remove(path)
	}
	return f.Close()
}

// writeFile writes what render does to a file, if there is a path.
func writeFile(flag, path string, render func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	var text bytes.Buffer
	if err := render(&text); err != nil {
		return err
	}
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}
