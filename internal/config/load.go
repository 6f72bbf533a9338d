package config

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/internal/limit"
)

// A Loader reads the configuration from the file, the environment and the flags it
// was bound to. Only one goroutine may use it.
type Loader struct {
	flags *pflag.FlagSet
}

// configFlag and configEnv name the file. They are not settings, because the file
// cannot name itself.
const (
	configFlag = "config"
	configEnv  = envPrefix + "CONFIG"
)

// Bind adds a flag to fs for every setting, and --topics and --config. The flags only
// record their texts; Load checks them.
func Bind(fs *pflag.FlagSet) *Loader {
	inGroup := func(f *pflag.Flag, group string) { f.Annotations = map[string][]string{groupAnnotation: {group}} }
	inGroup(fs.VarPF(&flagText{kind: "file"}, configFlag, "", "YAML file with settings."), firstGroup)
	defaults := Default()
	for _, s := range settings(&defaults) {
		f := fs.VarPF(&flagText{text: s.text(), kind: s.flagKind()}, s.flag(), "", s.doc)
		if s.kind == "bool" {
			f.NoOptDefVal = "true"
		}
		f.Hidden = strings.HasPrefix(s.key, ratesKey+".") // FlagGroup.More describes them
		inGroup(f, groupOf(s.key))
		if slices.Contains(firstSettings(), s.key) {
			inGroup(f, firstGroup)
		}
	}
	fs.StringArray(rulesFlag, nil, "Set one `name.member=value` of a rule for topics, such as prices.pattern=prices.>. You may repeat the flag.")
	inGroup(fs.Lookup(rulesFlag), rulesGroup)
	return &Loader{flags: fs}
}

// flagText is the pflag.Value that records a flag's text.
type flagText struct{ text, kind string }

func (t *flagText) Set(text string) error { t.text = text; return nil }
func (t *flagText) String() string        { return t.text }
func (t *flagText) Type() string          { return t.kind }

// Load reads all sources. It returns the Config and where each setting came from. environ
// is as os.Environ returns it. The error joins one *Error for each mistake; the Config is
// useless then. Each call reads the file again.
func (l *Loader) Load(environ []string) (Loaded, error) {
	c := Default()
	r := newReading(&c)
	variables := ours(environ)
	r.readFile(l.flags, variables)
	r.readEnvironment(variables)
	r.readFlags(l.flags)
	// The limiter also gets rules without a rate: one of them may be the most specific.
	for _, name := range slices.Sorted(maps.Keys(r.rules)) {
		rule := r.rules[name]
		c.Broker.Rules = append(c.Broker.Rules, rule.Rule)
		c.Limit.Rules = append(c.Limit.Rules, limit.Rule{Name: name, Pattern: rule.Pattern, Rate: rule.Rate})
	}
	// A setting that could not be read has its default, which the user did not choose: it contradicts
	// nothing.
	unread := r.wrong
	for _, e := range contradictions(&c) {
		e.Where = cmp.Or(r.originOf(e.Key), r.originOf(e.with))
		if !slices.ContainsFunc(unread, func(u *Error) bool { return u.isAbout(e.Key) || u.isAbout(e.with) }) {
			r.wrong = append(r.wrong, e)
		}
	}
	return Loaded{Config: c, origin: r.origin}, r.wrong.join()
}

// A reading collects the settings of all sources, the weakest source first.
type reading struct {
	settings []setting
	rules    map[string]*rule  // by name
	origin   map[string]string // where each setting that was given came from, by key
	wrong    mistakes
}

func newReading(c *Config) *reading {
	return &reading{settings: settings(c), rules: make(map[string]*rule), origin: make(map[string]string)}
}

// A naming is how a source names settings: key or setting.env.
type naming func(setting) string

func key(s setting) string { return s.key }

// find returns the setting of that name.
func (r *reading) find(by naming, name string) (setting, bool) {
	i := slices.IndexFunc(r.settings, func(s setting) bool { return by(s) == name })
	if i < 0 {
		return setting{}, false
	}
	return r.settings[i], true
}

// seeSettings is the remedy for a setting that is not known.
const seeSettings = ": `pubsubd config doc` describes the settings"

// set gives a setting its text and so overrides weaker sources.
func (r *reading) set(s setting, text, where string) {
	r.origin[s.key] = where
	if err := s.set(text); err != nil {
		r.fail(where, s.key, "is %q: %s", s.shownRefused(text), err)
	}
}

func (r *reading) fail(where, key, reason string, args ...any) {
	r.wrong = append(r.wrong, &Error{Where: where, Key: key, Reason: fmt.Sprintf(reason, args...)})
}

// originOf returns where a setting came from, or else its rule.
func (r *reading) originOf(key string) string {
	if where, ok := r.origin[key]; ok {
		return where
	}
	if name, _, ok := splitRuleKey(key); ok {
		return r.origin[rulesKey+"."+name]
	}
	return ""
}

// readFile reads the file that a flag or a variable names, if any.
func (r *reading) readFile(flags *pflag.FlagSet, variables map[string]string) {
	name, named := variables[configEnv]
	where := "environment variable " + configEnv
	if f := flags.Lookup(configFlag); f.Changed {
		name, named, where = f.Value.String(), true, "flag --"+configFlag
	}
	if !named {
		return
	}
	if name == "" {
		r.fail("", where, "is empty: name a file, or omit it")
		return
	}
	text, err := ReadText(name)
	if err != nil {
		r.fail(where, "configuration file", "cannot be read: %s", err)
		return
	}
	r.readYAML(name, text)
}

// ByteOrderMark is what certain editors begin a file in UTF-8 with.
const ByteOrderMark = "\ufeff"

// ReadText reads a file, without its byte order mark.
func ReadText(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	return bytes.TrimPrefix(text, []byte(ByteOrderMark)), err
}

func (r *reading) readEnvironment(variables map[string]string) {
	delete(variables, configEnv)
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		where := "environment variable " + name
		s, ok := r.find(setting.env, name)
		if key, isRule := ruleKeyOf(name); isRule {
			s, ok = r.ruleSetting(key, where)
		}
		if !ok {
			r.fail("", where, "is not known%s", otherVariables(name))
			continue
		}
		r.set(s, variables[name], where)
	}
}

// otherVariables says which variables there are instead of an unknown one.
func otherVariables(name string) string {
	begin := envPrefix + strings.ToUpper(rulesKey) + "_"
	if !strings.HasPrefix(name, begin) {
		return seeSettings
	}
	var ends []string
	for _, member := range members() {
		ends = append(ends, "_"+strings.ToUpper(envNames.Replace(member)))
	}
	return fmt.Sprintf(": the variables of a rule are %s<NAME> followed by %s; <NAME> is the rule's name in capitals, with underscores for dashes (%s)",
		begin, enumerate(ends, "or"), ruleNameForm)
}

func (r *reading) readFlags(flags *pflag.FlagSet) {
	for _, s := range r.settings {
		if f := flags.Lookup(s.flag()); f.Changed {
			r.set(s, f.Value.String(), "flag --"+s.flag())
		}
	}
	rules, _ := flags.GetStringArray(rulesFlag) // Bind defined it
	for _, text := range rules {
		r.readRuleFlag(text)
	}
}

// CommandVariables returns the variables that the commands read, with our prefix. None of
// them is a setting. serve ignores them, because it may share its environment with commands.
func CommandVariables() []string {
	return []string{envPrefix + "SERVER", envPrefix + "ADMIN", envPrefix + "CA", envPrefix + "CERT", envPrefix + "CERT_KEY", envPrefix + "TOKEN"}
}

// ours returns the variables with our prefix, except those of the commands and of Kubernetes.
func ours(environ []string) map[string]string {
	variables, ofCommands := make(map[string]string), CommandVariables()
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && !slices.Contains(ofCommands, name) && !isKubernetes(name, text) {
			variables[name] = text
		}
	}
	return variables
}

// isKubernetes reports whether Kubernetes sets the variable, in every pod beside a Service named
// pubsubd, or pubsubd-admin and the like. It recognises the _PORT of a Service with a longer name
// only by its value, because the name may be a misspelt setting.
func isKubernetes(name, text string) bool {
	end := strings.TrimPrefix(name, strings.TrimSuffix(envPrefix, "_")) + "_"
	_, port, found := strings.Cut(end, "_PORT_")
	return strings.HasSuffix(end, "_SERVICE_HOST_") || strings.Contains(end, "_SERVICE_PORT_") || strings.HasPrefix(end, "_PORT_") ||
		found && (port == "" && strings.Contains(text, "://") || strings.Contains(port, "_TCP_") || strings.Contains(port, "_UDP_") || strings.Contains(port, "_SCTP_"))
}
