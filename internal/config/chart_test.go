package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
)

const chartSchemaFile = "../../deploy/helm/pubsubd/values.schema.json"

// ofTheChart are the settings that the chart makes from other values, and secrets, which it takes
// only by reference.
var ofTheChart = regexp.MustCompile(`^(listen\..*|insecure|plaintext|drain\..*|state|store\.dir|addresses_file|hooks\..*\.secret)$`)

// The chart's schema refuses settings that the daemon would refuse, and knows all others.
func TestTheSchemaOfTheChartKnowsEverySetting(t *testing.T) {
	file, err := os.ReadFile(chartSchemaFile)
	require.NoError(t, err)
	block := regexp.MustCompile(`(?s)    "settings": \{\n.*?\n    \},\n`)
	require.Len(t, block.FindAll(file, -1), 1)
	golden(t, chartSchemaFile, block.ReplaceAllLiteralString(string(file), `    "settings": `+schemaOfSettings().write("    ")+",\n"))
	require.True(t, json.Valid(file))
}

// A schemaNode is a part of a JSON schema: an object, or the JSON of a leaf.
type schemaNode struct {
	leaf    string
	members map[string]*schemaNode
	others  *schemaNode // schema of the other members; nil: no others
}

func schemaOfSettings() *schemaNode {
	root := &schemaNode{}
	for _, s := range settings(new(Config)) {
		if !ofTheChart.MatchString(s.key) {
			root.add(strings.Split(s.key, "."), s)
		}
	}
	rules := &schemaNode{others: &schemaNode{}}
	for _, s := range ruleSettings(&broker.Rule{Name: "x"}, new(limit.Rate)) {
		rules.others.add(strings.Split(strings.TrimPrefix(s.key, rulesKey+".x."), "."), s)
	}
	root.members[rulesKey] = rules
	return root
}

func (n *schemaNode) add(path []string, s setting) {
	if n.members == nil {
		n.members = make(map[string]*schemaNode)
	}
	at := n.members[path[0]]
	if at == nil {
		at = &schemaNode{}
		n.members[path[0]] = at
	}
	if len(path) > 1 {
		at.add(path[1:], s)
		return
	}
	at.leaf = leafSchema(s)
}

// leafSchema returns the types that a YAML file may have for the setting.
func leafSchema(s setting) string {
	switch {
	case s.isList:
		return `{"type": ["array", "string"], "items": {"type": "string"}}`
	case s.isJSON:
		return `{"type": ["array", "string"]}`
	case s.kind == "bool":
		return `{"type": "boolean"}`
	case s.kind == "count", s.kind == "bytes":
		return `{"type": ["integer", "string"]}`
	}
	return `{"type": "string"}`
}

func (n *schemaNode) write(indent string) string {
	if n.leaf != "" {
		return n.leaf
	}
	inner, others := indent+"  ", "false"
	if n.others != nil {
		others = n.others.write(inner)
	}
	lines := []string{`"type": "object"`, `"additionalProperties": ` + others}
	if len(n.members) > 0 {
		var members []string
		for _, name := range slices.Sorted(maps.Keys(n.members)) {
			members = append(members, fmt.Sprintf("%s  %q: %s", inner, name, n.members[name].write(inner+"  ")))
		}
		lines = append(lines, "\"properties\": {\n"+strings.Join(members, ",\n")+"\n"+inner+"}")
	}
	return "{\n" + inner + strings.Join(lines, ",\n"+inner) + "\n" + indent + "}"
}
