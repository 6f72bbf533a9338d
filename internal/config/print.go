package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
)

// Said is a Config and where each of its settings came from, as Loader.Read
// returns it.
type Said struct {
	Config
	origin map[string]string // by key; what is not there is a default
}

// Summary says in a few lines how much was said where, and what may not be meant.
func (s Said) Summary() string {
	var given, live int
	rows := allSettings(&s.Config)
	places := make(map[string]int)
	for _, row := range rows {
		if where, ok := s.origin[row.key]; ok {
			given++
			places[placeOf(where)]++
		}
		if row.field.live() {
			live++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "listens   %s for clients, %s for operators\n", s.Listen.Public, s.Listen.Admin)
	if s.Listen.TCP != "" {
		fmt.Fprintf(&b, "          %s for clients without HTTP\n", s.Listen.TCP)
	}
	fmt.Fprintf(&b, "settings  %d given", given)
	for _, place := range sortedKeys(places) {
		fmt.Fprintf(&b, ", %d by %s", places[place], place)
	}
	fmt.Fprintf(&b, "; a reload reaches %d of %d\n", live, len(rows))
	fmt.Fprintf(&b, "rules     %d for topics\n", len(s.Broker.Rules))
	for _, doubt := range s.Doubts() {
		fmt.Fprintf(&b, "warning   %s\n", doubt)
	}
	return b.String()
}

// placeOf is an origin without its line or name.
func placeOf(where string) string {
	switch {
	case strings.HasPrefix(where, "flag "):
		return "flags"
	case strings.HasPrefix(where, "environment variable "):
		return "the environment"
	}
	return where[:strings.LastIndex(where, ":")]
}

// YAML returns a file that says all of it, defaults too, each setting that was
// given with its origin. A secret is masked.
func (s Said) YAML() string { return yamlOf(allSettings(&s.Config), s.origin) }

func yamlOf(rows []setting, origin map[string]string) string {
	var b strings.Builder
	var open []string // sections
	for _, row := range rows {
		if !row.field.said() {
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

func yamlValue(f field) string {
	text := shown(f, f.text())
	if !f.list() || f.secret() {
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

// plainBytes begin and go on with what means the text itself in YAML and in a shell
// alike, but for the words below.
const (
	plainFirst = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/"
	plainRest  = plainFirst + "._-:"
)

func isPlain(text string) bool {
	return text != "" && strings.Contains(plainFirst, text[:1]) && strings.Trim(text, plainRest) == "" && !strings.HasSuffix(text, ":")
}

// yamlScalar quotes what YAML might take for something else: null is the one word
// without quotes that is no text, number or truth.
func yamlScalar(text string) string {
	if isPlain(text) && !strings.EqualFold(text, "null") {
		return text
	}
	return fmt.Sprintf("%q", text)
}

// Environment returns a file of variables that say all of it, quoted for a shell
// and for systemd. A secret is a comment.
func (s Said) Environment() string { return environmentOf(allSettings(&s.Config)) }

func environmentOf(rows []setting) string {
	var b strings.Builder
	for _, row := range rows {
		switch {
		case !row.field.said():
		case row.field.secret():
			fmt.Fprintf(&b, "# %s is a secret: set it yourself\n", row.env())
		default:
			fmt.Fprintf(&b, "%s=%s\n", row.env(), shellWord(row.field.text()))
		}
	}
	return b.String()
}

// shellWord quotes what a shell would not leave as it is.
func shellWord(text string) string {
	if text == "" || isPlain(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Document returns what SETTINGS.md says: every setting, with its default, what it
// may be, and whether a reload reaches it.
func Document() string {
	c := Default()
	var doc strings.Builder
	doc.WriteString(documentHead)
	for _, s := range settings(&c) {
		text := s.field.text()
		if text == "" {
			text = "none"
		}
		documentRow(&doc, s, text)
	}
	fmt.Fprintf(&doc, documentRules, ruleNameMay, maxRules)
	for _, s := range ruleSettings(&broker.Rule{Name: "<name>"}, new(limit.Rate)) {
		documentRow(&doc, s, "")
	}
	return doc.String()
}

func documentRow(doc *strings.Builder, s setting, def string) {
	reload := "restart"
	if s.field.live() {
		reload = "reload"
	}
	fmt.Fprintf(doc, "| `%s` | %s | %s | %s | %s |\n", s.key, def, s.field.allowed(), reload, s.doc)
}

const documentHead = `# Settings

Each setting can be given in three places; the first that has it counts: a flag (` + "`--history-age 2m`" + `), an environment
variable (` + "`PUBSUBD_HISTORY_AGE=2m`" + `), the YAML file that ` + "`--config`" + ` or ` + "`PUBSUBD_CONFIG`" + ` names:

    history:
      age: 2m
      bytes: 4MiB

Dots in the names below are levels in the file. In flags, dots and underscores become dashes. Sizes are bytes, or whole
KiB, MiB or GiB (1024, 1024², 1024³ bytes); durations are numbers with ms, s, m or h; rates are numbers with /s, /m or /h,
and perhaps how many may come at once after a pause (` + "`10/s burst 50`" + `), which else is as many as in a second, and at least one. The flags
of rates (` + "`--rates-polls-address 10/s`" + `) are too many for ` + "`--help`" + `, and not in it. An unknown name, a name given twice
in the file, a value out of bounds, or a file without any setting keeps the daemon from starting. (` + "`PUBSUBD_PORT`" + `, ` + "`PUBSUBD_SERVICE_HOST`" + ` and their like are
Kubernetes', not ours, and ignored.)

| command | |
|---|---|
| ` + "`pubsubd config check`" + ` | says ok, or everything that is wrong (exit code 2) |
| ` + "`pubsubd config print`" + ` | what is in force, as a file, with the origin of all that is not a default |
| ` + "`pubsubd config env`" + ` | the same as environment variables |
| ` + "`pubsubd config doc`" + ` | this text |

They take the flags of ` + "`serve`" + `. On SIGHUP the daemon reads file and environment again, with the flags that it was started with. If
anything is wrong, it says so and changes nothing. Else what is marked *reload* below changes, without a connection lost; what
is marked *restart* stays as it was until then. The log tells both, key by key.

| setting | default | may be | changes by | |
|---|---|---|---|---|
`

const documentRules = `
## Rules for topics

A rule says otherwise for the topics that its pattern matches. Of several that match the most specific counts, wholly: token by
token, a name before ` + "`*`" + ` before ` + "`>`" + `. Each has a name (%s); there may be %d.

    topics:
      prices:
        pattern: prices.>
        history: {messages: 10, age: 5s}
        slow: conflate

As variables: ` + "`PUBSUBD_TOPICS_PRICES_HISTORY_AGE=5s`" + `, with underscores for the dashes of a name. As flags: ` + "`--topics prices.history.age=5s`" + `,
as often as there is something to say.

| setting | default | may be | changes by | |
|---|---|---|---|---|
`
