package config

import (
	"reflect"
	"slices"
)

// A Change is one setting that another Config has otherwise, as texts that people
// may see: secrets are masked. An empty text is a rule's that does not say it.
type Change struct {
	Key      string
	Old, New string
	Live     bool // it may change while the daemon runs
}

// Changes returns what to says otherwise than c, in the order of the table.
func (c Config) Changes(to Config) []Change {
	return changesOf(allSettings(&c), allSettings(&to))
}

func changesOf(old, now []setting) []Change {
	was, is := byKey(old), byKey(now)
	var changes []Change
	for _, row := range slices.Concat(old, now) {
		from, to := was[row.key], is[row.key]
		if textOrNone(from) == textOrNone(to) {
			continue
		}
		was[row.key] = to // told once
		changes = append(changes, Change{
			Key: row.key, Old: shown(row.field, textOrNone(from)), New: shown(row.field, textOrNone(to)), Live: row.field.live(),
		})
	}
	return changes
}

func byKey(rows []setting) map[string]field {
	fields := make(map[string]field, len(rows))
	for _, row := range rows {
		fields[row.key] = row.field
	}
	return fields
}

func textOrNone(f field) string {
	if f == nil {
		return ""
	}
	return f.text()
}

// Reloaded returns c with what may change while the daemon runs as to says it.
func (c Config) Reloaded(to Config) Config {
	from := settings(&to)
	for i, s := range settings(&c) {
		if s.field.live() {
			reflect.ValueOf(s.field.target()).Elem().Set(reflect.ValueOf(from[i].field.target()).Elem())
		}
	}
	c.Broker.Rules, c.Limit.Rules = to.Broker.Rules, to.Limit.Rules
	return c
}
