// Command scale measures how the server's cost grows with clients, topics,
// subscriptions, bytes and publishes. Each point is a load test in processes of its
// own; the results are a JSON file, a page and its charts.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// notes are what people say of the lines; see page.
//
//go:embed notes.md
var notes string

type options struct {
	pubsubd string
	out     string
	from    string
	quick   bool
	limit   time.Duration
}

// Where results go: those of a quick run must not take the place of real ones.
const (
	keptResults  = "loadtest/results"
	quickResults = "bin/scale-quick"
)

func (o *options) folder() string {
	switch {
	case o.out != "":
		return o.out
	case o.quick:
		return quickResults
	}
	return keptResults
}

func main() {
	var o options
	flag.StringVar(&o.pubsubd, "pubsubd", "bin/pubsubd", "the binary to measure, and to measure with")
	flag.StringVar(&o.out, "out", "", "folder for scale.json, scale.md and charts (default "+keptResults+"; of a quick run: "+quickResults+")")
	flag.StringVar(&o.from, "from", "", "measure nothing: write the page again from this scale.json")
	flag.BoolVar(&o.quick, "quick", false, "run few clients, for about a minute")
	flag.DurationVar(&o.limit, "limit", 12*time.Minute, "time limit of all points together; points that would exceed it are left out")
	flag.Parse()
	o.out = o.folder()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "scale: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	m, err := o.measurements(ctx)
	if err != nil {
		return err
	}
	if err := write(o.out, m); err != nil {
		return err
	}
	if o.from == "" && slices.ContainsFunc(m.Points, func(p Measured) bool { return p.Status == Failed }) {
		return errors.New("some points failed; the page says which")
	}
	return nil
}

func (o *options) measurements(ctx context.Context) (Measurements, error) {
	if o.from != "" {
		return read(o.from)
	}
	plan := fullPlan()
	if o.quick {
		plan = quickPlan()
	}
	runner := measurer{pubsubd: o.pubsubd, deadline: time.Now().Add(o.limit), log: os.Stderr, run: runChild}
	m, err := runner.all(ctx, plan)
	m.Quick = o.quick
	return m, err
}

func read(file string) (Measurements, error) {
	var m Measurements
	text, err := os.ReadFile(file)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("read %s: %w", file, err)
	}
	return m, nil
}

// write writes all files into a folder, which it makes.
func write(folder string, m Measurements) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"scale.json": append(text, '\n'),
		"scale.md":   []byte(page(m, sections(notes))),
	}
	for _, s := range allSeries {
		for _, c := range charts(s, m.of(s.name)) {
			var b bytes.Buffer
			if err := c.chart.SVG(&b); err != nil {
				return err
			}
			files[c.file] = b.Bytes()
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
