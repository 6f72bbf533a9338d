// Package scenarios reads and runs scenario files: load tests that are written
// down, one or several, each against a server of its own, with the figures that
// another system had in the same experiment. The presets are such files, and come
// with the binary.
//
// A file is read strictly and told all its faults at once, each with its line.
package scenarios

import (
	"embed"
	"fmt"
	"os"
	"slices"
	"strings"
)

// A Suite is what a scenario file asks for: runs, one after the other. It is not
// safe for concurrent use.
type Suite struct {
	Name   string // of the embedded file, or the path
	Title  string
	Source string // where the reference figures are from; may be empty
	About  string // what is measured, and what to know of the figures; may be empty
	Theirs string // what the source says of all of it in words; may be empty
	Runs   []*Run // at least one
}

//go:embed *.yaml
var embedded embed.FS

// Names returns the scenario files that come with the binary, in order.
func Names() []string {
	files, err := embedded.ReadDir(".")
	if err != nil {
		panic("BUG: the embedded scenarios cannot be listed: " + err.Error())
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = strings.TrimSuffix(f.Name(), ".yaml")
	}
	return names
}

// Text returns an embedded scenario file as it is.
func Text(name string) ([]byte, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("no preset is called %q: use %s", name, strings.Join(Names(), ", "))
	}
	return embedded.ReadFile(name + ".yaml")
}

// Preset reads an embedded scenario file.
func Preset(name string) (*Suite, error) {
	text, err := Text(name)
	if err != nil {
		return nil, err
	}
	return Parse(name, text)
}

// Load reads the scenario file of that path or, if there is none, the embedded one
// of that name.
func Load(fileOrName string) (*Suite, error) {
	text, err := os.ReadFile(fileOrName)
	switch {
	case err == nil:
		return Parse(fileOrName, text)
	case slices.Contains(Names(), fileOrName):
		return Preset(fileOrName)
	case os.IsNotExist(err):
		return nil, fmt.Errorf("%q is neither a file nor one of the presets %s", fileOrName, strings.Join(Names(), ", "))
	}
	return nil, err
}
