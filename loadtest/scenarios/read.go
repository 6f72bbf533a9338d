package scenarios

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/loadtest"
)

// suite reads the whole file.
func (r *reading) suite(s *Suite, body ast.Node) {
	runs := false
	for _, e := range r.entries("the file", body) {
		switch e.key {
		case "title":
			r.text(e, &s.Title)
		case "source":
			r.text(e, &s.Source)
		case "about":
			r.text(e, &s.About)
		case "theirs":
			r.text(e, &s.Theirs)
		case "runs":
			runs = true
			s.Runs = r.runs(e)
		default:
			r.fail(e.at, e.key, "unknown key: want title, source, about, theirs or runs")
		}
	}
	if s.Title == "" && len(r.faults) == 0 {
		r.fail(body, "title", "is missing: want text, which says what the file measures")
	}
	if !runs {
		r.fail(body, "runs", "is missing: want a list of runs")
	}
}

func (r *reading) runs(e entry) []*Run {
	list, ok := e.node.(*ast.SequenceNode)
	if !ok || len(list.Values) == 0 {
		r.fail(e.at, e.key, "is %s: want a list of at least one run", describe(e.node))
		return nil
	}
	var runs []*Run
	names := map[string]string{}
	for i, n := range list.Values {
		run := r.run(n)
		if run == nil {
			continue
		}
		if run.Name == "" {
			run.Name = fmt.Sprintf("run-%d", i+1)
		}
		if first, ok := names[run.Name]; ok {
			r.fail(n, "name", "is %q, which is also the name of the run at %s", run.Name, first)
		}
		names[run.Name] = r.at(n)
		runs = append(runs, run)
	}
	return runs
}

// run reads one run: first its kind, which says what else it may have.
func (r *reading) run(n ast.Node) *Run {
	entries := r.entries("a run", n)
	if entries == nil {
		return nil
	}
	kind := ""
	at := slices.IndexFunc(entries, func(e entry) bool { return e.key == "kind" })
	if at >= 0 {
		kind, _ = textNode(entries[at].node)
	}
	switch {
	case at < 0:
		r.fail(n, "kind", "is missing: want %s", either(Kinds()))
	case !slices.Contains(Kinds(), kind):
		r.fail(entries[at].at, "kind", "is %s: want %s", describe(entries[at].node), either(Kinds()))
	default:
		return r.runOfKind(kind, n, entries)
	}
	return nil
}

func textNode(n ast.Node) (string, bool) {
	s, ok := n.(*ast.StringNode)
	if !ok {
		return "", false
	}
	return s.Value, true
}

func either(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func (r *reading) runOfKind(kind string, n ast.Node, entries []entry) *Run {
	run := newRun(kind)
	before := len(r.faults)
	for _, e := range entries {
		switch e.key {
		case "kind":
		case "name":
			r.runName(e, run)
		case "series":
			r.text(e, &run.Series)
		case "course":
			r.course(e, run)
		case "theirs":
			r.theirs(e, run)
		default:
			r.key(e, run)
		}
	}
	if len(r.faults) == before { // one fault is told once
		r.impossible(n, run, entries)
	}
	return run
}

// nameForm is what files can be called by.
var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,40}$`)

func (r *reading) runName(e entry, run *Run) {
	r.text(e, &run.Name)
	if run.Name != "" && !nameForm.MatchString(run.Name) {
		r.fail(e.at, e.key, "is %q: want lower-case letters, digits, dots and dashes, because charts get this file name", run.Name)
	}
}

func (r *reading) course(e entry, run *Run) {
	b, ok := e.node.(*ast.BoolNode)
	if !ok {
		r.fail(e.at, e.key, "is %s: want true or false", describe(e.node))
		return
	}
	run.Course = b.Value
}

// theirs reads figures, or words.
func (r *reading) theirs(e entry, run *Run) {
	if _, ok := e.node.(ast.MapNode); !ok {
		r.text(e, &run.Theirs.Words)
		return
	}
	for _, each := range r.entries(e.key, e.node) {
		switch each.key {
		case "mean":
			run.Theirs.MeanMS = r.number(each)
		case "median":
			run.Theirs.MedianMS = r.number(each)
		case "stdev":
			run.Theirs.StdevMS = r.number(each)
		case "clients":
			run.Theirs.Clients = r.number(each)
		case "words":
			r.text(each, &run.Theirs.Words)
		default:
			r.fail(each.at, "theirs."+each.key, "unknown key: want mean, median, stdev (in ms), clients or words")
		}
	}
}

// key reads a parameter.
func (r *reading) key(e entry, run *Run) {
	switch {
	case run.flags.Lookup(e.key) == nil:
		r.fail(e.at, e.key, "unknown key in a run of kind %s: want name, series, course, theirs, %s", run.Kind, either(keys(run.flags)))
	case ofCommandLine(e.key):
		r.fail(e.at, e.key, "is not for a file: give --%s on the command line", e.key)
	default:
		r.parameter(run.flags, e)
	}
}

// ofCommandLine holds for what says where a server is, and for secrets.
func ofCommandLine(key string) bool {
	return slices.Contains([]string{"target", "admin", "server-pid", "api-key", "token"}, key)
}

func keys(f *pflag.FlagSet) []string {
	var names []string
	f.VisitAll(func(each *pflag.Flag) {
		if !ofCommandLine(each.Name) {
			names = append(names, each.Name)
		}
	})
	return names
}

// flagNamed finds which flag a fault of a configuration is about.
var flagNamed = regexp.MustCompile(`^--([a-z0-9-]+):? *(.*)$`)

// impossible tells values that no run can be made of, at the lines of their keys.
func (r *reading) impossible(n ast.Node, run *Run, entries []entry) {
	common := run.Common()
	given := *common
	common.ServerCommand = []string{"a server is started"} // or a target is named, when it runs
	if common.Dialect != loadtest.DefaultBroadcast().Dialect {
		common.Target, common.Token = "http://127.0.0.1", "a-token"
	}
	err := run.Check()
	*common = given
	for _, each := range flatten(err) {
		key, text := "", each.Error()
		if parts := flagNamed.FindStringSubmatch(text); parts != nil {
			key, text = parts[1], parts[2]
		}
		at := n
		if i := slices.IndexFunc(entries, func(e entry) bool { return e.key == key }); i >= 0 {
			at = entries[i].at
		}
		r.fail(at, key, "%s", text)
	}
}

// flatten returns the faults that were joined into err.
func flatten(err error) []error {
	switch e := err.(type) { //nolint:errorlint // the tree that Check returns is walked, not searched
	case nil:
		return nil
	case loadtest.ConfigError:
		return flatten(e.Unwrap())
	case interface{ Unwrap() []error }:
		var all []error
		for _, each := range e.Unwrap() {
			all = append(all, flatten(each)...)
		}
		return all
	}
	return []error{err}
}
