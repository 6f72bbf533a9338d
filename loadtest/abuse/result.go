package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A Result is what a whole run found.
type Result struct {
	Finished     time.Time  `json:"finished"`
	Build        string     `json:"build"` // the daemon's
	Cores        int        `json:"cores"`
	Quick        bool       `json:"quick"`
	Victims      int        `json:"victims"`
	AttackS      float64    `json:"attack_s"`           // each lasts so long, on the sink and on the daemon
	BudgetBytes  int64      `json:"budget_bytes"`       // memory.budget
	MemoryLimit  int64      `json:"memory_limit_bytes"` // GOMEMLIMIT
	Attacks      []Attacked `json:"attacks"`
	Verdicts     []Verdict  `json:"verdicts"`
	OverallRatio float64    `json:"overall_ratio"`
}

// Attacked is one attack, on the sink and then on the daemon.
type Attacked struct {
	Name string `json:"name"`
	What string `json:"what"`
	Sink Phase  `json:"sink"` // victims are served by the daemon while the sink is attacked
	Live Phase  `json:"live"`
}

// A Phase is one attack on one target.
type Phase struct {
	Raid    Raid    `json:"raid"`
	Victims Victims `json:"victims"`
	Server  Server  `json:"server"`
}

// Names of the files that are written.
const (
	jsonName = "abuse.json"
	textName = "abuse.txt"
)

// write writes both files into a folder, which it makes.
func (r *Result) write(folder string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	for name, content := range map[string][]byte{jsonName: append(text, '\n'), textName: []byte(r.report())} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	return nil
}
