package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/internal/limit"
)

// A group is a section of SETTINGS.md and of the help of serve.
type group struct {
	name  string
	needs string   // one sentence: who needs the settings, and why
	note  string   // more, only for SETTINGS.md, in Markdown
	keys  []string // a setting is in the group that has its key, or else a section of it: listen for listen.public
}

// groups returns the groups in the order in which they are shown. Every setting is in one.
func groups() []group {
	return []group{
		{
			name:  "Addresses and names",
			needs: "Set these when clients come from other machines, from pages of your site or through a proxy, because the defaults serve one machine.",
			note:  "[deploy](README.md#who-may-connect) shows which settings go together.",
			keys:  []string{"listen", "hosts", "cors", "trusted_proxies", "plaintext", "insecure", "http2", "addresses_file"},
		},
		{
			name:  "TLS",
			needs: "Set these if clients connect to the daemon itself over TLS, and set plaintext instead if a proxy in front of it ends TLS.",
			note:  "[deploy](README.md#tls) compares certificates from files with those that the daemon gets by ACME.",
			keys:  []string{"tls", "listen.acme"},
		},
		{
			name:  "Credentials",
			needs: "Set these before anyone else can reach the daemon, because without them every client may publish and subscribe to everything.",
			note:  "[deploy](README.md#tokens) explains tokens, API keys and revocations.",
			keys:  []string{"auth", "admin"},
		},
		{
			name:  "Store",
			needs: "Set a folder if messages must survive a restart or a crash of the daemon, because topics are only in memory by default.",
			note:  "[deploy](README.md#the-store) helps to choose the sync mode and the size.",
			keys:  []string{"store"},
		},
		{
			name:  "History and messages",
			needs: "Choose these with the developers of your application, because they decide how long a client may be away without a gap.",
			note:  "[Rules](#rules-for-topics) set other values for some topics.",
			keys:  []string{"history", "message", "idempotency"},
		},
		{
			name:  "Sessions and polls",
			needs: "The defaults suit most clients, so change these only for a proxy with short timeouts, or to trade memory or CPU time.",
			note:  "`lane` is the [fast path](../pkg/README.md#glossary).",
			keys:  []string{"session", "poll", "compression", "lane"},
		},
		{
			name:  "Limits",
			needs: "Lower these if strangers can reach the daemon, because they bound what one client, or all clients together, may use.",
			note:  "[deploy](README.md#limits) says what happens beyond each limit, and how to choose. An IPv6 network of 64 bits counts as one address.",
			keys:  []string{"memory", "limits"},
		},
		{
			name:  ratesGroup,
			needs: "Set these on the Internet, because one client in a loop could otherwise keep the daemon from serving the others.",
			note:  "Each value is a rate, or `off`, which is the default, and a reload changes it. `--help` omits their flags, such as `--rates-polls-address 10/s`, because there are many. An IPv6 network of 64 bits counts as one address. [internet.yaml](internet.yaml) is an example.",
			keys:  []string{ratesKey},
		},
		{
			name:  "Hooks",
			needs: "Set these if your application must decide about messages and subscriptions, or must know who is connected. A hook is off until its URL is set.",
			note:  "[HOOKS.md](HOOKS.md) is the contract for the application's author.",
			keys:  []string{"hooks"},
		},
		{
			name:  "Logs and traces",
			needs: "Set these to choose what the daemon logs, and how many publishes and slow deliveries it reports to a collector of traces.",
			note:  "[deploy](README.md#observe) shows what to do with both.",
			keys:  []string{"log", "tracing"},
		},
		{
			name:  "Stop and upgrade",
			needs: "Set these if you restart the daemon while clients are connected, so that they move to the next daemon without an error.",
			note:  "[deploy](README.md#upgrade) has the steps.",
			keys:  []string{"drain", "listen.reuseport"},
		},
		{
			name:  rulesGroup,
			needs: "Set rules if some topics need a longer history, a lower rate or presence, because all other settings apply to every topic.",
			keys:  []string{rulesKey},
		},
	}
}

// Names of groups that are not shown as tables of settings.
const (
	ratesGroup = "Rates"
	rulesGroup = "Rules for topics"
)

// firstSettings are the settings that most installations need, besides --config.
func firstSettings() []string {
	return []string{"listen.public", "plaintext", "hosts", "cors.origins", "trusted_proxies", "auth.keys", "auth.api_keys", storeDir, "history.age"}
}

// groupOf returns the name of the group of a setting: of its key, or else of the section that has it.
func groupOf(key string) string {
	section, _, _ := strings.Cut(key, ".")
	for _, name := range []string{key, section} {
		if i := slices.IndexFunc(groups(), func(g group) bool { return slices.Contains(g.keys, name) }); i >= 0 {
			return groups()[i].name
		}
	}
	return ""
}

// A FlagGroup is a section of the help of serve.
type FlagGroup struct {
	Title string         // a sentence or two: what the flags are, and who needs them
	Flags *pflag.FlagSet // not sorted
	More  string         // lines on flags that are hidden, if any
}

// groupAnnotation is the annotation of a flag that has the name of its group.
const groupAnnotation = "group"

// firstGroup is the group of --config and of the flags of firstSettings.
const firstGroup = "First"

// FlagGroups sorts the flags of Bind, and only these, into groups: first those that most
// installations need, then the groups of SETTINGS.md.
func FlagGroups(fs *pflag.FlagSet) []FlagGroup {
	all := append([]group{{name: firstGroup, needs: "Most installations need only these:"}}, groups()...)
	var shown []FlagGroup
	for _, g := range all {
		flags := pflag.NewFlagSet(g.name, pflag.ContinueOnError)
		flags.SortFlags = false
		for _, name := range flagOrder() {
			f := fs.Lookup(name)
			if f != nil && slices.Contains(f.Annotations[groupAnnotation], g.name) {
				flags.AddFlag(f)
			}
		}
		shown = append(shown, FlagGroup{Title: g.title(), Flags: flags, More: g.more()})
	}
	return shown
}

// IsSetting reports whether Bind added the flag.
func IsSetting(f *pflag.Flag) bool { return len(f.Annotations[groupAnnotation]) > 0 }

func (g group) title() string {
	if g.name == firstGroup {
		return g.needs
	}
	return wrapped(g.name+". "+g.needs, titleWidth)
}

// more describes the flags of rates, which would be a fifth of the help and are all alike, and
// the form of --topics.
func (g group) more() string {
	switch g.name {
	case rulesGroup:
		return "  For example, --topics prices.pattern=prices.> --topics prices.history.age=5s.\n"
	case ratesGroup:
	default:
		return ""
	}
	var kinds, scopes []string
	for _, kind := range limit.Kinds() {
		kinds = append(kinds, kind.String())
		for _, scope := range kind.Scopes() {
			if !slices.Contains(scopes, scope.String()) {
				scopes = append(scopes, scope.String())
			}
		}
	}
	return "  --rates-KIND-SCOPE, such as --rates-polls-address\n" +
		"  KIND is " + enumerate(kinds, "or") + ".\n" +
		"  SCOPE is " + enumerate(scopes, "or") + ".\n"
}

// flagOrder returns the names of the flags of Bind: those of firstSettings first, and then as in
// SETTINGS.md.
func flagOrder() []string {
	names := []string{configFlag}
	for _, key := range firstSettings() {
		names = append(names, setting{key: key}.flag())
	}
	for _, s := range settings(new(Config)) {
		if !slices.Contains(names, s.flag()) {
			names = append(names, s.flag())
		}
	}
	return append(names, rulesFlag)
}
