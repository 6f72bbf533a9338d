package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A Comparison is all that was measured, and all that the tables are made of.
type Comparison struct {
	Finished  time.Time         `json:"finished"`
	Source    string            `json:"source"` // git describe
	Quick     bool              `json:"quick"`  // its figures mean nothing
	Machine   Machine           `json:"machine"`
	Versions  map[string]string `json:"versions"` // by product
	LeftOut   []LeftOut         `json:"left_out"`
	Scenarios []Heading         `json:"scenarios"`

	Measurements []Measurement `json:"measurements"`
}

// LeftOut is a server that could not be compared.
type LeftOut struct {
	Server string `json:"server"`
	Reason string `json:"reason"`
}

// A Heading is a scenario in the results.
type Heading struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Args    string   `json:"args"`
	Servers []string `json:"servers"` // in the order of the tables
}

// headings keep the order in which contenders are listed.
func headings(scenarios []scenario, contenders []contender) []Heading {
	var all []Heading
	for _, s := range scenarios {
		h := Heading{Name: s.name, Title: s.title, Args: strings.Join(s.args, " "), Servers: []string{}}
		for _, c := range contenders {
			if c.takesPart(s) {
				h.Servers = append(h.Servers, c.name)
			}
		}
		all = append(all, h)
	}
	return all
}

const (
	jsonName     = "compare.json"
	markdownName = "compare.md"
)

// write puts both files into the folder.
func (c Comparison) write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	text, err := c.json()
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, jsonName), text, 0o644); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return c.writeTables(folder)
}

func (c Comparison) writeTables(folder string) error {
	err := os.WriteFile(filepath.Join(folder, markdownName), []byte(c.render()), 0o644)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}

// json returns the comparison indented, but for the measurements: one a line, so
// that the file is short and still shows in a diff what changed.
func (c Comparison) json() ([]byte, error) {
	var lines bytes.Buffer
	for i, m := range c.Measurements {
		if i > 0 {
			lines.WriteString(",\n")
		}
		line, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		lines.Write(line)
	}
	c.Measurements = []Measurement{}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	filled := fmt.Appendf(nil, "\"measurements\": [\n%s\n]", lines.Bytes())
	return append(bytes.Replace(text, []byte(`"measurements": []`), filled, 1), '\n'), nil
}

func readComparison(folder string) (Comparison, error) {
	var c Comparison
	text, err := os.ReadFile(filepath.Join(folder, jsonName))
	if err != nil {
		return c, fmt.Errorf("read the results: %w", err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("read the results: %w", err)
	}
	return c, nil
}
