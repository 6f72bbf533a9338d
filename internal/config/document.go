package config

import (
	"cmp"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
)

// documentTemplate is SETTINGS.md without its tables.
//
//go:embed settings.md.tmpl
var documentTemplate string

// Document returns the text of SETTINGS.md: every setting with its default, its values,
// and whether it needs a restart.
func Document() string {
	c := Default()
	all := settings(&c)
	var sections []string
	for _, g := range groups() {
		sections = append(sections, g.section(all))
	}
	return strings.NewReplacer(
		"{{first}}", wrapped("Most installations need only "+codes(firstSettings())+".", documentWidth),
		"{{contents}}\n", contents(),
		"{{command variables}}", codes(CommandVariables()),
		"{{forms}}\n", formRows(),
		"{{groups}}", strings.Join(sections, "\n\n"),
		"{{rule settings}}\n", table(ruleSettings(&broker.Rule{Name: "NAME"}, new(limit.Rate)), rulesKey+".NAME."),
		"{{rule names}}", ruleNameForm,
		"{{most rules}}", strconv.Itoa(maxRules),
	).Replace(documentTemplate)
}

// codes returns "`a`, `b` and `c`".
func codes(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "`" + name + "`"
	}
	return enumerate(quoted, "and")
}

// anchor returns the anchor that a forge gives to the group's heading.
func (g group) anchor() string { return strings.ReplaceAll(strings.ToLower(g.name), " ", "-") }

// contents returns the rows of the table of contents.
func contents() string {
	var rows strings.Builder
	for _, g := range groups() {
		fmt.Fprintf(&rows, "| [%s](#%s) | `%s` |\n", g.name, g.anchor(), strings.Join(g.keys, "`, `"))
	}
	return rows.String()
}

// documentWidth is the length of the lines of SETTINGS.md, and titleWidth of those of titles in help.
const (
	documentWidth = 130
	titleWidth    = 100
)

// wrapped breaks a paragraph into lines of at most width bytes, unless a word is longer.
func wrapped(paragraph string, width int) string {
	var b strings.Builder
	length := 0
	for word := range strings.FieldsSeq(paragraph) {
		switch {
		case length == 0:
		case length+1+len(word) > width:
			b.WriteByte('\n')
			length = 0
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += len(word)
	}
	return b.String()
}

// section returns the heading of a group, who needs it, and the table of its settings.
func (g group) section(all []setting) string {
	text := "## " + g.name + "\n\n" + wrapped(g.needs+" "+g.note, documentWidth)
	switch g.name {
	case rulesGroup: // the template has the rest
		return text
	case ratesGroup:
		return text + "\n\n" + rateTable()
	}
	var own []setting
	for _, s := range all {
		if groupOf(s.key) == g.name {
			own = append(own, s)
		}
	}
	return text + "\n\n" + strings.TrimSuffix(table(own, ""), "\n")
}

// keysInText finds the keys of settings that have a dot.
var keysInText = sync.OnceValue(func() *regexp.Regexp {
	var keys []string
	for _, s := range settings(new(Config)) {
		if strings.Contains(s.key, ".") {
			keys = append(keys, regexp.QuoteMeta(s.key))
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return len(b) - len(a) }) // hooks.events.url before a part of it
	return regexp.MustCompile(`\b(` + strings.Join(keys, "|") + `)\b`)
})

// table returns a Markdown table of settings, whose names it shows without the prefix.
func table(settings []setting, prefix string) string {
	var rows strings.Builder
	isRules := prefix != ""
	if isRules {
		rows.WriteString("| setting | value | change | meaning |\n|---|---|---|---|\n")
	} else {
		rows.WriteString("| setting | default | value | change | meaning |\n|---|---|---|---|---|\n")
	}
	for _, s := range settings {
		fmt.Fprintf(&rows, "| `%s` |", strings.TrimPrefix(s.key, prefix))
		if !isRules {
			fmt.Fprintf(&rows, " %s |", cmp.Or(s.text(), "none"))
		}
		change := ""
		if s.restart {
			change = "restart"
		}
		fmt.Fprintf(&rows, " %s | %s | %s |\n", s.form, change, keysInText().ReplaceAllString(s.doc, "`$0`"))
	}
	return rows.String()
}

// rateTable returns a table with a row for each kind of rate and a column for each scope.
func rateTable() string {
	scopes := []limit.Scope{limit.All, limit.Address, limit.Principal}
	var b strings.Builder
	b.WriteString("| rate at which clients |")
	for _, scope := range scopes {
		fmt.Fprintf(&b, " for %s |", ratedScopes[scope])
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(scopes)))
	for _, kind := range limit.Kinds() {
		fmt.Fprintf(&b, "\n| %s |", ratedKinds[kind])
		for _, scope := range scopes {
			if !slices.Contains(kind.Scopes(), scope) {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(&b, " `%s` |", rateKey(kind, scope))
		}
	}
	return b.String()
}

// forms explains the words of the column value, in the order of the document.
var forms = []struct{ kind, meaning string }{
	{"count", "a whole number, at least 1"},
	{"bytes", "a number of bytes, or of whole KiB, MiB or GiB (1024, 1024² or 1024³ bytes): `65536` or `64KiB`"},
	{"duration", "a number with ms, s, m or h, at least 1ms: `250ms`, `90s` or `1h30m`"},
	{"rate", "a number with /s, /m or /h, from `1/h` to `1000000000/s`, and optionally a burst: `10/s burst 50`. The burst is how many may come at once after a pause. The default burst is the number of one second, and at least 1"},
	{"bool", "`true` or `false`"},
	{"host:port", "`127.0.0.1:8080` or `[::1]:8080`; `:8080` is every interface, and port 0 any free port"},
	{"address", "host:port, or `unix:` and the absolute path of a Unix socket, at most 100 bytes long: `unix:/run/pubsubd/public.sock`"},
	{"url", "an http or https URL without a user, a password or a fragment"},
	{"file", "a path, of a file or a folder"},
	{"files", "a list of paths"},
	{"names", "a list of DNS names in lower case, without a scheme or a port: `app.example`. In `hosts`, `*.app.example` matches all names with one label more, and `*` alone matches every name"},
	{"origins", "a list of origins as browsers send them, in lower case, without a path, a slash at the end or the default port of the scheme: `https://app.example`. `*` alone is every origin"},
	{"addresses", "a list of IP addresses or networks, without zones: `10.0.0.7`, `10.1.0.0/16` or `fd00::/8`"},
	{"pattern", "the name of a topic, or a pattern, in which `*` matches one segment and a last `>` matches the rest: `chat.*` or `prices.>`"},
	{"patterns", "a list of names of topics or patterns, at least 1"},
	{"rights", "a JSON list in the form of the claim `pubsub` of a token: `[{\"topics\":[\"public.>\"],\"allow\":[\"subscribe\"]}]`"},
	{"claims", "a list of names of claims"},
	{"email", "an address such as `ops@app.example`"},
	{"text", "a text without control characters"},
	{"secret", "24 bytes or more: text, or `whsec_` and base64, as `openssl rand -base64 32` writes it"},
}

func formRows() string {
	var rows strings.Builder
	for _, f := range forms {
		fmt.Fprintf(&rows, "| %s | %s |\n", f.kind, f.meaning)
	}
	return rows.String()
}
