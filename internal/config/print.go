package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Loaded is a Config and where each of its settings came from, as Loader.Load
// returns it.
type Loaded struct {
	Config
	origin map[string]string // by key; defaults have none
}

// Given reports whether any source gave a setting.
func (s Loaded) Given() bool { return len(s.origin) > 0 }

// Summary returns a few lines: the addresses, how many settings each source gave, and
// the warnings.
func (s Loaded) Summary() string {
	var given, live int
	rows := allSettings(&s.Config)
	sources := make(map[string]int)
	for _, row := range rows {
		if where, ok := s.origin[row.key]; ok {
			given++
			sources[sourceOf(where)]++
		}
		if !row.restart {
			live++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "listens   %s for clients, %s for operators\n", s.Listen.Public, s.Listen.Admin)
	if s.Listen.TCP != "" {
		fmt.Fprintf(&b, "          %s for clients without HTTP\n", s.Listen.TCP)
	}
	fmt.Fprintf(&b, "settings  %d given", given)
	for _, source := range slices.Sorted(maps.Keys(sources)) {
		fmt.Fprintf(&b, ", %d by %s", sources[source], source)
	}
	fmt.Fprintf(&b, "; a reload reaches %d of %d\n", live, len(rows))
	fmt.Fprintf(&b, "rules     %d for topics\n", len(s.Broker.Rules))
	for _, warning := range s.Warnings() {
		fmt.Fprintf(&b, "warning   %s\n", warning)
	}
	return b.String()
}

// sourceOf returns an origin without its line or name.
func sourceOf(where string) string {
	switch {
	case strings.HasPrefix(where, "flag "):
		return "flags"
	case strings.HasPrefix(where, "environment variable "):
		return "the environment"
	}
	return where[:strings.LastIndex(where, ":")]
}

// YAML returns a file with every setting, including defaults, and the origins of those that
// were given. Secrets are masked.
func (s Loaded) YAML() string { return yamlOf(allSettings(&s.Config), s.origin) }

func yamlOf(rows []setting, origin map[string]string) string {
	var b strings.Builder
	var open []string // sections
	for _, row := range rows {
		if !row.given() {
			continue
		}
		levels := strings.Split(row.key, ".")
		last := len(levels) - 1
		for depth := range last {
			if len(open) <= depth || !slices.Equal(levels[:depth+1], open[:depth+1]) {
				fmt.Fprintf(&b, "%*s%s:\n", 2*depth, "", levels[depth])
			}
		}
		open = levels[:last]
		fmt.Fprintf(&b, "%*s%s: %s", 2*last, "", levels[last], yamlValue(row.field))
		if where, ok := origin[row.key]; ok {
			fmt.Fprintf(&b, " # %s", strings.Join(strings.Fields(where), " "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func yamlValue(f *field) string {
	text := f.shown(f.text())
	if !f.isList || f.isSecret {
		return yamlScalar(text)
	}
	var parts []string
	if text != "" {
		parts = strings.Split(text, ",")
	}
	for i := range parts {
		parts[i] = yamlScalar(parts[i])
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// yamlScalar quotes a text that YAML might read as something else.
func yamlScalar(text string) string {
	const first = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/"
	if text == "" || !strings.Contains(first, text[:1]) || strings.Trim(text, first+"._-:") != "" || strings.HasSuffix(text, ":") || strings.EqualFold(text, "null") {
		return fmt.Sprintf("%q", text)
	}
	return text
}
