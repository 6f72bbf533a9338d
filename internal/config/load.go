package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// A Loader reads the configuration from the flags it was bound to, the
// environment and the file. It is for one goroutine.
type Loader struct {
	flags *pflag.FlagSet
}

// configFlag and configEnv name the file; they are no settings because the file
// cannot name itself.
const (
	configFlag = "config"
	configEnv  = envPrefix + "CONFIG"
)

// Bind adds a flag for every setting, --topics, which sets those of rules, and
// --config to fs. The flags only take down what was said; Load judges it.
func Bind(fs *pflag.FlagSet) *Loader {
	fs.Var(&said{kind: "file"}, configFlag, "read settings from this YAML file")
	defaults := Default()
	for _, s := range settings(&defaults) {
		f := fs.VarPF(&said{text: s.field.text(), kind: s.field.kind()}, s.flag(), "", s.doc)
		if s.field.kind() == "bool" {
			f.NoOptDefVal = "true"
		}
		f.Hidden = s.isRate() // they would be a third of --help, and are all alike
	}
	fs.Var(&saidOften{}, rulesFlag, "set one member of a rule for topics, as in prices.pattern=prices.>; may be given often")
	return &Loader{flags: fs}
}

func dashed(s setting) string { return "--" + s.flag() }

// said is the pflag.Value that holds a flag's text as it was given.
type said struct{ text, kind string }

func (s *said) Set(text string) error { s.text = text; return nil }
func (s *said) String() string        { return s.text }
func (s *said) Type() string          { return s.kind }

// saidOften is the pflag.Value of a flag that adds to what it said before.
type saidOften struct{ texts []string }

func (s *saidOften) Set(text string) error { s.texts = append(s.texts, text); return nil }
func (s *saidOften) String() string        { return strings.Join(s.texts, " ") }
func (s *saidOften) Type() string          { return "name.member=value" }

// FlagError adds what would do in its place to pflag's error about an unknown one.
// It is for cobra's SetFlagErrorFunc.
func (l *Loader) FlagError(err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var known []string
	l.flags.VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
	name := "--" + unknown.GetSpecifiedName()
	return fmt.Errorf("%w%s", err, cmp.Or(otherScopes(name, dashed), didYouMean(name, "--", known)))
}

// Load reads all sources and returns the Config they make. environ is as
// os.Environ returns it. The error joins an *Error for everything wrong; the
// Config is of no use then. Load may be called again, to read the file anew.
func (l *Loader) Load(environ []string) (Config, error) {
	said, err := l.Read(environ)
	return said.Config, err
}

// Read is Load that also tells where each setting came from.
func (l *Loader) Read(environ []string) (Said, error) {
	c := Default()
	r := newReading(&c)
	variables := ours(environ)
	if file, where := r.fileName(l.flags, variables); file != "" {
		r.readFile(file, where)
	}
	r.readEnvironment(variables)
	r.readFlags(l.flags)
	r.putRules(&c)
	r.complain(contradictions(&c)...)
	return Said{Config: c, origin: r.origin}, join(r.wrong)
}

// A reading collects what the sources say, the weakest first.
type reading struct {
	settings []setting
	rules    map[string]*rule  // by name
	origin   map[string]string // where each setting that was given came from, by key
	wrong    []*Error
}

func newReading(c *Config) *reading {
	return &reading{settings: settings(c), rules: make(map[string]*rule), origin: make(map[string]string)}
}

// find returns the setting that name picks, which is one of key, flag and env.
func (r *reading) find(by func(setting) string, name string) (setting, bool) {
	i := slices.IndexFunc(r.settings, func(s setting) bool { return by(s) == name })
	if i < 0 {
		return setting{}, false
	}
	return r.settings[i], true
}

func (r *reading) names(by func(setting) string) []string {
	names := make([]string, len(r.settings))
	for i, s := range r.settings {
		names[i] = by(s)
	}
	return names
}

func key(s setting) string { return s.key }

// set gives a setting its text, over what a weaker source said.
func (r *reading) set(s setting, text, where string) {
	r.origin[s.key] = where
	if err := s.field.set(text); err != nil {
		r.fail(where, s.key, "is %q: %s", shownRefused(s.field, text), err)
	}
}

func (r *reading) fail(where, key, reason string, args ...any) {
	r.wrong = append(r.wrong, &Error{Where: where, Key: key, Reason: fmt.Sprintf(reason, args...)})
}

// complain takes errors that do not know where their settings came from. What is about
// a setting that could not be read, itself or its section, is left out: it stands at
// its default, which nobody said.
func (r *reading) complain(wrong ...*Error) {
	unread := r.wrong
	for _, e := range wrong {
		e.Where = cmp.Or(r.originOf(e.Key), r.originOf(e.with))
		if !slices.ContainsFunc(unread, func(u *Error) bool { return u.isAbout(e.Key) || u.isAbout(e.with) }) {
			r.wrong = append(r.wrong, e)
		}
	}
}

// originOf returns where a setting came from, or where its rule did.
func (r *reading) originOf(key string) string {
	if where, ok := r.origin[key]; ok {
		return where
	}
	if name, _, ok := splitRuleKey(key); ok {
		return r.origin[rulesKey+"."+name]
	}
	return ""
}

// fileName returns the file to read, and who named it; empty if nobody did.
func (r *reading) fileName(flags *pflag.FlagSet, variables map[string]string) (file, where string) {
	variable, ok := variables[configEnv]
	switch f := flags.Lookup(configFlag); {
	case f.Changed:
		file, where = f.Value.String(), "flag --"+configFlag
	case ok:
		file, where = variable, "environment variable "+configEnv
	default:
		return "", ""
	}
	if file == "" {
		r.fail("", where, "is empty: name a file, or leave it out")
	}
	return file, where
}

func (r *reading) readFile(name, where string) {
	text, err := os.ReadFile(name)
	if err != nil {
		r.fail(where, "configuration file", "cannot be read: %s", err)
		return
	}
	r.readYAML(name, text)
}

func (r *reading) readEnvironment(variables map[string]string) {
	delete(variables, configEnv)
	for _, name := range sortedKeys(variables) {
		where := "environment variable " + name
		s, ok := r.find(setting.env, name)
		if key, isRule := ruleKeyOf(name); isRule {
			s, ok = r.ruleSetting(key, where)
		}
		if !ok {
			r.fail("", where, "is not known%s", r.nearVariable(name))
			continue
		}
		r.set(s, variables[name], where)
	}
}

// nearVariable says what would do in place of an unknown variable.
func (r *reading) nearVariable(name string) string {
	begin := envPrefix + strings.ToUpper(rulesKey) + "_"
	if !strings.HasPrefix(name, begin) {
		return cmp.Or(otherScopes(name, setting.env), didYouMean(name, envPrefix, append(r.names(setting.env), configEnv)))
	}
	var ends []string
	for _, member := range members() {
		ends = append(ends, "_"+strings.ToUpper(envNames.Replace(member)))
	}
	return fmt.Sprintf(": a rule's are %s<NAME> and then %s; <NAME> is the rule's in capitals, with underscores for dashes (%s)",
		begin, orList(ends), ruleNameMay)
}

func (r *reading) readFlags(flags *pflag.FlagSet) {
	for _, s := range r.settings {
		if f := flags.Lookup(s.flag()); f.Changed {
			r.set(s, f.Value.String(), "flag --"+s.flag())
		}
	}
	if often, ok := flags.Lookup(rulesFlag).Value.(*saidOften); ok {
		for _, text := range often.texts {
			r.readRuleFlag(text)
		}
	}
}

// ours returns the variables with our prefix, but for Kubernetes'.
func ours(environ []string) map[string]string {
	variables := make(map[string]string)
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && !fromKubernetes(name, text) {
			variables[name] = text
		}
	}
	return variables
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// fromKubernetes holds for the variables that Kubernetes sets in every pod beside
// a Service that is named pubsubd, or pubsubd-admin and the like.
func fromKubernetes(name, text string) bool {
	rest := strings.TrimPrefix(strings.TrimPrefix(name, envPrefix), "SERVICE_")
	return name == envPrefix+"SERVICE_HOST" || rest == "PORT" || strings.HasPrefix(rest, "PORT_") ||
		otherService.MatchString(name) || strings.HasSuffix(name, "_PORT") && isURL.MatchString(text)
}

// What Kubernetes sets for a Service of a longer name than ours. Its _PORT alone is
// known by what it holds: it might be somebody's idea of a setting of ours.
var (
	otherService = regexp.MustCompile("^" + envPrefix +
		"[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
	isURL = regexp.MustCompile("^(tcp|udp|sctp)://")
)
