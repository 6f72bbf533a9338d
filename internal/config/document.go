package config

import (
	"fmt"
	"strings"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
)

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
