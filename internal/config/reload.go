package config

import (
	"reflect"
	"slices"
)

// A Change is one setting that differs between two Configs, as texts that people may
// see: secrets are masked. The text is empty if a rule does not set it.
type Change struct {
	Key      string
	Old, New string
	Live     bool // a reload changes it
}

// Changes returns the settings that differ in to, in the order of the table.
func (c Config) Changes(to Config) []Change {
	return changesOf(allSettings(&c), allSettings(&to))
}

func changesOf(old, new []setting) []Change {
	was, is := texts(old), texts(new)
	var changes []Change
	for _, s := range slices.Concat(old, new) {
		from, to := was[s.key], is[s.key]
		if from == to {
			continue
		}
		was[s.key] = to // report it once
		changes = append(changes, Change{Key: s.key, Old: s.shown(from), New: s.shown(to), Live: !s.restart})
	}
	return changes
}

func texts(rows []setting) map[string]string {
	texts := make(map[string]string, len(rows))
	for _, s := range rows {
		texts[s.key] = s.text()
	}
	return texts
}

// Reloaded returns c with the settings of to that a reload changes.
func (c Config) Reloaded(to Config) Config {
	from := settings(&to)
	for i, s := range settings(&c) {
		if !s.restart {
			reflect.ValueOf(s.target).Elem().Set(reflect.ValueOf(from[i].target).Elem())
		}
	}
	c.Broker.Rules, c.Limit.Rules = to.Broker.Rules, to.Limit.Rules
	return c
}
