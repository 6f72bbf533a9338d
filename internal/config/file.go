package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// A yamlFile reads the tree of one file. A setting is a leaf; its key is the path of
// keys above it, joined by dots:
//
//	history:
//	  age: 2m
type yamlFile struct {
	*reading
	name string
	seen map[string]int // the line of each path that was read

	isEmptyMap bool // somewhere the file has {}, which keeps the defaults
}

func (r *reading) readYAML(name string, text []byte) {
	f := &yamlFile{reading: r, name: name, seen: make(map[string]int)}
	// entry finds duplicate keys, because a.b beside a: {b} is also one.
	parsed, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		f.syntax(err)
		return
	}
	if len(parsed.Docs) > 1 {
		r.fail(f.at(parsed.Docs[1].Body), "", "a second YAML document begins: put all settings into the first")
	}
	before := len(r.wrong)
	if len(parsed.Docs) > 0 {
		f.section("", parsed.Docs[0].Body)
	}
	// Somebody may still be writing a file without settings. On a reload, it would
	// silently remove every limit.
	if len(r.origin) == 0 && len(r.wrong) == before && !f.isEmptyMap {
		r.fail(name, "", "the file holds no settings: write some into it, or {} to keep all defaults")
	}
}

func (f *yamlFile) at(n ast.Node) string {
	if n == nil || n.GetToken() == nil {
		return f.name
	}
	return fmt.Sprintf("%s:%d", f.name, n.GetToken().Position.Line)
}

func (f *yamlFile) syntax(err error) {
	at, ok := errors.AsType[yaml.Error](err)
	if !ok || at.GetToken() == nil {
		f.fail(f.name, "", "not YAML: %s", err)
		return
	}
	message, hint := at.GetMessage(), "" // for the most common mistakes
	switch {
	case strings.Contains(message, "alias"):
		hint = `: put quotes around a text that begins with *, as in "*"`
	case strings.Contains(message, "\t"):
		hint = ": indent with spaces, not with tabs"
	}
	f.fail(fmt.Sprintf("%s:%d", f.name, at.GetToken().Position.Line), "", "not YAML: %s%s", message, hint)
}

// section reads a mapping below path. It may be empty, because all its settings may be
// commented out.
func (f *yamlFile) section(path string, n ast.Node) {
	switch n := n.(type) {
	case ast.MapNode:
		isEmpty := true
		for entries := n.MapRange(); entries.Next(); isEmpty = false {
			f.entry(path, entries.Key(), entries.Value())
		}
		f.isEmptyMap = f.isEmptyMap || isEmpty
	case nil, *ast.NullNode:
	default:
		f.fail(f.at(n), cmp.Or(path, "the file"), "is %s: want settings below it, as in \"name: value\"", describe(n))
	}
}

func (f *yamlFile) entry(path string, k ast.MapKeyNode, v ast.Node) {
	name := k.GetToken().Value
	if path != "" {
		name = path + "." + name
	}
	if line, ok := f.seen[name]; ok {
		f.fail(f.at(k), name, "is already set in line %d", line)
		return
	}
	f.seen[name] = k.GetToken().Position.Line
	s, isSetting := f.find(key, name)
	rule, member, isRule := splitRuleKey(name)
	switch {
	case isRule:
		f.ruleEntry(name, rule, member, k, v)
	case isSetting:
		f.leaf(s, k, v)
	case name == rulesKey || slices.ContainsFunc(f.settings, func(s setting) bool { return strings.HasPrefix(s.key, name+".") }):
		f.section(name, v)
	default:
		f.fail(f.at(k), name, "is not a setting"+seeSettings)
	}
}

// ruleEntry reads an entry below topics: a rule, a section or a setting of a rule.
func (f *yamlFile) ruleEntry(name, rule, member string, k ast.MapKeyNode, v ast.Node) {
	s, isSetting := f.ruleSetting(name, f.at(k))
	switch {
	case isSetting:
		f.leaf(s, k, v)
	case isRuleName(rule) && (member == "" || slices.ContainsFunc(members(), func(m string) bool { return strings.HasPrefix(m, member+".") })):
		f.rule(rule, f.at(k))
		f.section(name, v)
	default:
		f.fail(f.at(k), name, "is not a setting: %s", wrongMember(rule, member))
	}
}

func (f *yamlFile) leaf(s setting, k ast.MapKeyNode, v ast.Node) {
	text, ok := textOfLeaf(v)
	list, isList := v.(*ast.SequenceNode)
	switch {
	case ok:
		f.set(s, text, f.at(k))
	case isList && s.isList:
		f.list(s, k, list)
	case isList && s.isJSON:
		f.set(s, jsonOf(v), f.at(k))
	default:
		f.fail(f.at(k), s.key, "is %s: want %s", describe(v), s.allowed)
	}
}

func textOfLeaf(v ast.Node) (text string, ok bool) {
	switch v := v.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return v.GetToken().Value, true
	}
	return "", false
}

// list reads a list as if it were one line with commas.
func (f *yamlFile) list(s setting, k ast.MapKeyNode, n *ast.SequenceNode) {
	texts := make([]string, len(n.Values))
	for i, v := range n.Values {
		text, ok := textOfLeaf(v)
		if !ok || text == "" {
			f.fail(f.at(v), s.key, "holds %s: want %s", describe(v), s.allowed)
			return
		}
		texts[i] = text
	}
	f.set(s, strings.Join(texts, ","), f.at(k))
}

// jsonOf writes lists and mappings of texts as JSON. A node of another kind becomes null, so
// that the setting refuses it.
func jsonOf(n ast.Node) string {
	var parts []string
	switch n := n.(type) {
	case *ast.SequenceNode:
		for _, v := range n.Values {
			parts = append(parts, jsonOf(v))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case ast.MapNode:
		for entries := n.MapRange(); entries.Next(); { // a key that appears twice stays
			parts = append(parts, jsonText(entries.Key().GetToken().Value)+":"+jsonOf(entries.Value()))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	if text, ok := textOfLeaf(n); ok {
		return jsonText(text)
	}
	return "null"
}

func jsonText(s string) string {
	text, err := jsontext.AppendQuote(nil, s)
	if err != nil {
		return "null" // not UTF-8
	}
	return string(text)
}

// describe names the kind of a node for an error.
func describe(n ast.Node) string {
	switch n := n.(type) {
	case ast.MapNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "empty"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		return "an anchor, an alias or a tag, which pubsubd does not support"
	case *ast.LiteralNode:
		return `a text of several lines (put quotes around ">")`
	default:
		return fmt.Sprintf("%q", n.GetToken().Value)
	}
}
