package config

import (
	"reflect"
	"slices"

	"github.com/pubsubd/pubsubd/internal/broker"
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

func changesOf(old, new []setting) (changes []Change) {
	texts := make(map[string][2]string) // by key
	for i, rows := range [][]setting{old, new} {
		for _, s := range rows {
			text := texts[s.key]
			text[i] = s.text()
			texts[s.key] = text
		}
	}
	for _, s := range slices.Concat(old, new) {
		if text := texts[s.key]; text[0] != text[1] {
			changes = append(changes, Change{Key: s.key, Old: s.shown(text[0]), New: s.shown(text[1]), Live: !s.restart})
		}
		delete(texts, s.key) // report it once
	}
	return changes
}

// Reloaded returns c with the settings of to that a reload changes. A rule of to that c does not
// have is not ephemeral.
func (c Config) Reloaded(to Config) Config {
	from := settings(&to)
	for i, s := range settings(&c) {
		if !s.restart {
			reflect.ValueOf(s.target).Elem().Set(reflect.ValueOf(from[i].target).Elem())
		}
	}
	was := c.Broker.Rules
	c.Broker.Rules, c.Limit.Rules = slices.Clone(to.Broker.Rules), to.Limit.Rules
	for i := range c.Broker.Rules {
		r := &c.Broker.Rules[i]
		at := slices.IndexFunc(was, func(of broker.Rule) bool { return of.Name == r.Name })
		r.Ephemeral = at >= 0 && was[at].Ephemeral
	}
	return c
}
