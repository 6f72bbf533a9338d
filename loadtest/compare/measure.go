package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// A Measurement is one run of the load generator against one server, started for
// it. Its JSON is kept with the results.
type Measurement struct {
	Scenario string           `json:"scenario"`
	Server   string           `json:"server"`
	Round    int              `json:"round"`
	Args     string           `json:"args"`  // of "pubsubd loadtest", but for addresses and keys
	Build    string           `json:"build"` // of pubsubd
	Started  time.Time        `json:"started"`
	ElapsedS float64          `json:"elapsed_s"`
	Steal    float64          `json:"steal_ratio"`      // of the machine's time that its host gave to others
	ExitCode int              `json:"exit_code"`        // of the load generator; -1: there was none
	Error    string           `json:"error,omitempty"`  // why it failed
	Result   *loadtest.Result `json:"result,omitempty"` // may be there though it failed
}

// failed holds if the figures are of no use. Missed objectives and a busy
// generator are in the result, and are shown with the figures.
func (m Measurement) failed() bool { return m.Error != "" }

// generatorBound holds if the load generator, not the server, set the pace.
func (m Measurement) generatorBound() bool {
	return m.Result != nil && len(m.Result.Verdict.GeneratorBound) > 0
}

// same holds for measurements of which one is enough.
func (m Measurement) same(o Measurement) bool {
	return m.Scenario == o.Scenario && m.Server == o.Server && m.Round == o.Round && m.Args == o.Args && m.Build == o.Build
}

// blank is what is known of a step before it is taken.
func blank(s step, build string) Measurement {
	return Measurement{
		Scenario: s.scenario.name, Server: s.contender.name, Round: s.round,
		Args: strings.Join(s.args(), " "), Build: build,
	}
}

// measure takes a step. Only a comparison that was interrupted is an error; a
// measurement that failed says so itself.
func measure(ctx context.Context, s step, pubsubd, build string) (Measurement, error) {
	m := blank(s, build)
	m.Started = time.Now().UTC().Truncate(time.Second)
	began, machine := time.Now(), readMachineTime()
	err := m.run(ctx, s, pubsubd)
	if ctx.Err() != nil {
		return m, ctx.Err()
	}
	if err != nil {
		m.Error = err.Error()
	}
	m.ElapsedS = time.Since(began).Round(time.Millisecond).Seconds()
	m.Steal = readMachineTime().stealSince(machine)
	return m, nil
}

func (m *Measurement) run(ctx context.Context, s step, pubsubd string) error {
	m.ExitCode = -1
	server, err := start(ctx, s.contender)
	if err != nil {
		return err
	}
	defer server.stop()
	ctx, cancel := context.WithTimeout(ctx, 4*s.scenario.lasts+time.Minute)
	defer cancel()
	said, err := m.generate(ctx, pubsubd, append(append([]string{"loadtest"}, s.args()...), server.target()...))
	switch {
	case err != nil:
		return err
	case m.ExitCode == loadtest.ExitFailed && m.Result != nil && len(m.Result.Verdict.Failed) > 0:
		return errors.New(m.Result.Verdict.Failed[0])
	case m.Result == nil || m.ExitCode == loadtest.ExitFailed:
		return fmt.Errorf("the load generator ended with exit code %d: %s", m.ExitCode, said)
	}
	return nil
}

// generate runs the load generator as a process of its own, and returns the last
// it said.
func (m *Measurement) generate(ctx context.Context, pubsubd string, args []string) (string, error) {
	var result, said bytes.Buffer
	command := exec.CommandContext(ctx, pubsubd, append(args, "--quiet", "--json", "-")...)
	command.Env, command.SysProcAttr = plainEnvironment(), ownGroup()
	command.Stdout, command.Stderr = &result, &said
	err := command.Run()
	if ctx.Err() != nil {
		return "", fmt.Errorf("the load generator was given up: %w", ctx.Err())
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return "", fmt.Errorf("run the load generator: %w", err)
	}
	m.ExitCode = command.ProcessState.ExitCode()
	if result.Len() == 0 {
		return lastLine(said.String()), nil
	}
	m.Result = &loadtest.Result{}
	if err := json.Unmarshal(result.Bytes(), m.Result); err != nil {
		m.Result = nil
		return "", fmt.Errorf("result of the load generator: %w", err)
	}
	return lastLine(said.String()), nil
}
