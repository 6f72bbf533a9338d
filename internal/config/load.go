package config

import (
	"errors"
	"fmt"
	"os"
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

// Bind adds a flag for every setting, and --config, to fs. The flags only take
// down what was said; Load judges it.
func Bind(fs *pflag.FlagSet) *Loader {
	fs.Var(&said{kind: "file"}, configFlag, "read settings from this YAML file")
	defaults := Default()
	for _, s := range settings(&defaults) {
		f := fs.VarPF(&said{text: s.field.text(), kind: s.field.kind()}, s.flag(), "", s.doc)
		if s.field.kind() == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	return &Loader{flags: fs}
}

// said is the pflag.Value that holds a flag's text as it was given.
type said struct{ text, kind string }

func (s *said) Set(text string) error { s.text = text; return nil }
func (s *said) String() string        { return s.text }
func (s *said) Type() string          { return s.kind }

// FlagError adds the nearest known flag to pflag's error about an unknown one.
// It is for cobra's SetFlagErrorFunc.
func (l *Loader) FlagError(err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var known []string
	l.flags.VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, didYouMean("--"+unknown.GetSpecifiedName(), "--", known))
}

// Load reads all sources and returns the Config they make. environ is as
// os.Environ returns it. The error joins an *Error for everything wrong; the
// Config is of no use then. Load may be called again, to read the file anew.
func (l *Loader) Load(environ []string) (Config, error) {
	c := Default()
	r := newReading(&c)
	variables := ours(environ)
	if file := r.fileName(l.flags, variables); file != "" {
		r.readFile(file)
	}
	r.readEnvironment(variables)
	r.readFlags(l.flags)
	r.complain(contradictions(&c)...)
	return c, join(r.wrong)
}

// A reading collects what the sources say, the weakest first.
type reading struct {
	settings []setting
	origin   map[string]string // where each setting that was given came from, by key
	wrong    []*Error
}

func newReading(c *Config) *reading {
	return &reading{settings: settings(c), origin: make(map[string]string)}
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
		r.fail(where, s.key, "is %q: %s", text, err)
	}
}

func (r *reading) fail(where, key, reason string, args ...any) {
	r.wrong = append(r.wrong, &Error{Where: where, Key: key, Reason: fmt.Sprintf(reason, args...)})
}

// complain takes errors that do not know where their settings came from.
func (r *reading) complain(wrong ...*Error) {
	for _, e := range wrong {
		e.Where = r.origin[e.Key]
		r.wrong = append(r.wrong, e)
	}
}

// fileName returns the file to read; empty if none was named.
func (r *reading) fileName(flags *pflag.FlagSet, variables map[string]string) string {
	if f := flags.Lookup(configFlag); f.Changed {
		return r.named(f.Value.String(), "flag --"+configFlag)
	}
	if name, ok := variables[configEnv]; ok {
		return r.named(name, "environment variable "+configEnv)
	}
	return ""
}

func (r *reading) named(file, where string) string {
	if file == "" {
		r.fail("", where, "is empty: name a file, or leave it out")
	}
	return file
}

func (r *reading) readFile(name string) {
	text, err := os.ReadFile(name)
	if err != nil {
		r.fail("", "configuration file", "cannot be read: %s", err)
		return
	}
	r.readYAML(name, text)
}

func (r *reading) readEnvironment(variables map[string]string) {
	delete(variables, configEnv)
	for _, name := range sortedKeys(variables) {
		where := "environment variable " + name
		s, ok := r.find(setting.env, name)
		if !ok {
			r.fail("", where, "is not known%s", didYouMean(name, envPrefix, append(r.names(setting.env), configEnv)))
			continue
		}
		r.set(s, variables[name], where)
	}
}

func (r *reading) readFlags(flags *pflag.FlagSet) {
	for _, s := range r.settings {
		if f := flags.Lookup(s.flag()); f.Changed {
			r.set(s, f.Value.String(), "flag --"+s.flag())
		}
	}
}

// ours returns the variables with our prefix, but for Kubernetes'.
func ours(environ []string) map[string]string {
	variables := make(map[string]string)
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && !fromKubernetes(name) {
			variables[name] = text
		}
	}
	return variables
}

// fromKubernetes holds for the variables that Kubernetes sets in every pod
// beside a Service that is named pubsubd.
func fromKubernetes(name string) bool {
	rest := strings.TrimPrefix(strings.TrimPrefix(name, envPrefix), "SERVICE_")
	return name == envPrefix+"SERVICE_HOST" || rest == "PORT" || strings.HasPrefix(rest, "PORT_")
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
