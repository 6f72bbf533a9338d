package scenarios

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"
)

// A fault is one thing wrong with a file: where, with which key, and what would do.
type fault struct{ place, key, text string }

func (f fault) Error() string {
	return f.place + ": " + strings.TrimSpace(f.key+": "+f.text)
}

// A reading is one file being read, and what was found wrong with it so far.
type reading struct {
	name   string
	faults []error
}

// Parse reads a scenario file. The error has every fault, a line each; name is
// what the file is called in them.
func Parse(name string, text []byte) (*Suite, error) {
	r := &reading{name: name}
	s := &Suite{Name: name}
	// Doubled keys are found by us: the parser would stop at the first.
	parsed, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	switch {
	case err != nil:
		r.syntax(err)
	case len(parsed.Docs) == 0 || parsed.Docs[0].Body == nil:
		r.faults = append(r.faults, fault{r.name, "the file", "is empty: want a title and runs"})
	case len(parsed.Docs) > 1:
		r.fail(parsed.Docs[1].Body, "the file", "has a second document: write it to another file")
	default:
		r.suite(s, parsed.Docs[0].Body)
	}
	if err := errors.Join(r.faults...); err != nil {
		return nil, err
	}
	return s, nil
}

func (r *reading) fail(n ast.Node, key, format string, args ...any) {
	r.faults = append(r.faults, fault{r.at(n), key, fmt.Sprintf(format, args...)})
}

func (r *reading) at(n ast.Node) string {
	if n == nil || n.GetToken() == nil {
		return r.name
	}
	return fmt.Sprintf("%s:%d", r.name, n.GetToken().Position.Line)
}

func (r *reading) syntax(err error) {
	var at yaml.Error
	if errors.As(err, &at) && at.GetToken() != nil {
		place := fmt.Sprintf("%s:%d", r.name, at.GetToken().Position.Line)
		r.faults = append(r.faults, fault{place, "not YAML", at.GetMessage()})
		return
	}
	r.faults = append(r.faults, fault{r.name, "not YAML", err.Error()})
}

// An entry is a key and its value.
type entry struct {
	key  string
	at   ast.Node // the key
	node ast.Node // the value
}

// entries returns those of a mapping; a key that is listed twice, once.
func (r *reading) entries(what string, n ast.Node) []entry {
	mapping, ok := n.(ast.MapNode)
	if !ok {
		r.fail(n, what, "is %s: want keys and values, as in \"name: value\"", describe(n))
		return nil
	}
	var all []entry
	lines := map[string]int{}
	for each := mapping.MapRange(); each.Next(); {
		k := each.Key().GetToken()
		if line, ok := lines[k.Value]; ok {
			r.fail(each.Key(), k.Value, "is set twice, first in line %d", line)
			continue
		}
		lines[k.Value] = k.Position.Line
		all = append(all, entry{key: k.Value, at: each.Key(), node: each.Value()})
	}
	return all
}

// text reads a value that is words.
func (r *reading) text(e entry, into *string) {
	switch n := e.node.(type) {
	case *ast.StringNode:
		*into = strings.TrimSpace(n.Value)
	case *ast.LiteralNode:
		*into = strings.TrimSpace(n.Value.Value)
	default:
		r.fail(e.at, e.key, "is %s: want text", describe(e.node))
		return
	}
	if *into == "" {
		r.fail(e.at, e.key, "is empty: want text, or omit it")
	}
}

// number reads a value that is a figure of something measured.
func (r *reading) number(e entry) *float64 {
	var v float64
	switch n := e.node.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		if _, err := fmt.Sscan(n.GetToken().Value, &v); err == nil && v >= 0 {
			return &v
		}
	}
	r.fail(e.at, e.key, "is %s: want a number that is not negative", describe(e.node))
	return nil
}

// parameter sets the flag from the value, which must be of its type.
func (r *reading) parameter(flags *pflag.FlagSet, e entry) {
	f := flags.Lookup(e.key)
	text, ok := textOf(f, e.node)
	if !ok || flags.Set(e.key, text) != nil {
		r.fail(e.at, e.key, "is %s: want %s", describe(e.node), want(f))
	}
}

// textOf returns a value as a flag takes it, if it is of the flag's type.
func textOf(f *pflag.Flag, n ast.Node) (string, bool) {
	is := func(ok bool) (string, bool) { return n.GetToken().Value, ok }
	switch v := n.(type) {
	case *ast.IntegerNode:
		return is(f.Value.Type() == "int" || f.Value.Type() == "int64")
	case *ast.BoolNode:
		return is(f.Value.Type() == "bool")
	case *ast.StringNode:
		return v.Value, v.Value != "" && f.Value.Type() != "int" && f.Value.Type() != "int64" && f.Value.Type() != "bool"
	case *ast.SequenceNode:
		return listOf(v), f.Value.Type() == "durationSlice"
	}
	return "", false
}

// listOf writes a list in one line; what is no text makes it one that no flag
// takes.
func listOf(n *ast.SequenceNode) string {
	texts := make([]string, len(n.Values))
	for i, v := range n.Values {
		if s, ok := v.(*ast.StringNode); ok {
			texts[i] = s.Value
		}
	}
	return strings.Join(texts, ",")
}

// want says what a flag's value may be.
func want(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64":
		return "a whole number"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration, such as 250ms, 15s or 2m"
	case "durationSlice":
		return "durations, such as [200ms, 1s]"
	}
	return "text"
}

// describe says what a node is that should be something else.
func describe(n ast.Node) string {
	switch n := n.(type) {
	case ast.MapNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "empty"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		return "an anchor, an alias or a tag, which scenario files do not support"
	case nil:
		return "empty"
	default:
		return fmt.Sprintf("%q", n.GetToken().Value)
	}
}
