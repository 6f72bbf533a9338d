package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// Measurements are what the page is made of.
type Measurements struct {
	Started     time.Time            `json:"started"`
	TookS       float64              `json:"took_s"`
	Quick       bool                 `json:"quick"`
	Environment loadtest.Environment `json:"environment"`
	Build       map[string]string    `json:"build"`
	Points      []Measured           `json:"points"`
}

// Status is what became of a point.
type Status string

// The statuses, by the load test's verdict.
const (
	OK             Status = "ok"
	GeneratorBound Status = "generator-bound"
	Missed         Status = "missed" // something was late or lost
	Failed         Status = "failed"
	NotRun         Status = "not run" // time was up
)

// Measured is a point and its figures, which are zero if it failed or was not run.
type Measured struct {
	Point
	Command          string   `json:"command"`
	Status           Status   `json:"status"`
	Reasons          []string `json:"reasons,omitempty"` // of a status other than ok
	Deliveries       int64    `json:"deliveries"`        // in the recorded part, as all that follows
	CPUS             float64  `json:"cpu_s"`
	CPUPerDeliveryUS float64  `json:"cpu_per_delivery_us"`
	BytesIn          int64    `json:"bytes_in"`
	BytesOut         int64    `json:"bytes_out"`
	MedianMS         float64  `json:"median_ms"`
	P99MS            float64  `json:"p99_ms"`
	ResidentBytes    int64    `json:"resident_bytes"`     // with all clients, less before the first
	ResidentEndBytes int64    `json:"resident_end_bytes"` // after the last message, less before the first client
}

// usable reports whether the server's CPU and memory are what the point asks for. A
// generator at its limit makes latencies longer; the server's work stays the same.
func (m *Measured) usable() bool { return m.Status == OK || m.Status == GeneratorBound }

func (m *Measured) residentPerSession() float64 { return float64(m.ResidentBytes) / float64(m.Clients) }

func (m *Measured) residentEndPerSession() float64 {
	return float64(m.ResidentEndBytes) / float64(m.Clients)
}

func (m *Measured) cpuPerBurstUS() float64 { return m.CPUS * 1e6 / float64(m.Bursts) }

// A measurer runs the points of a plan, one after the other.
type measurer struct {
	pubsubd  string
	deadline time.Time
	log      io.Writer
	run      func(ctx context.Context, binary string, args []string) (loadtest.Result, error)
}

// all returns every point of the plan, measured or not. The error is that of ctx.
func (m *measurer) all(ctx context.Context, plan []Point) (Measurements, error) {
	all := Measurements{Started: time.Now().UTC().Truncate(time.Second)}
	begun := time.Now()
	for i, p := range plan {
		_, _ = fmt.Fprintf(m.log, "%d of %d: %s %s: ", i+1, len(plan), p.Series, thousands(p.X))
		measured, result := m.one(ctx, p)
		if err := ctx.Err(); err != nil {
			return all, err
		}
		_, _ = fmt.Fprintf(m.log, "%s\n", strings.Join(append([]string{string(measured.Status)}, measured.Reasons...), "; "))
		all.Points = append(all.Points, measured)
		if result.Scenario != "" {
			all.Environment = result.Environment
			if result.Server != nil {
				all.Build = result.Server.Build
			}
		}
	}
	all.TookS = time.Since(begun).Round(time.Second).Seconds()
	return all, nil
}

// patience is how much longer than planned a point may take.
const patience = 3

func (m *measurer) one(ctx context.Context, p Point) (Measured, loadtest.Result) {
	args := p.arguments()
	measured := Measured{Point: p, Command: "pubsubd " + strings.Join(args, " ")}
	if time.Until(m.deadline) < p.takes() {
		measured.Status, measured.Reasons = NotRun, []string{"the time limit was reached"}
		return measured, loadtest.Result{}
	}
	ctx, cancel := context.WithDeadline(ctx, earlier(m.deadline, time.Now().Add(patience*p.takes())))
	defer cancel()
	result, err := m.run(ctx, m.pubsubd, args)
	if err != nil {
		measured.Status, measured.Reasons = Failed, []string{err.Error()}
		return measured, loadtest.Result{}
	}
	measured.take(&result)
	return measured, result
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// take takes over the result's figures, unless they mean nothing.
func (m *Measured) take(r *loadtest.Result) {
	switch r.Verdict.ExitCode {
	case loadtest.ExitOK:
		m.Status = OK
	case loadtest.ExitGeneratorBound:
		m.Status, m.Reasons = GeneratorBound, r.Verdict.GeneratorBound
	case loadtest.ExitMissed:
		m.Status, m.Reasons = Missed, append(r.Failed(), r.Verdict.GeneratorBound...)
	default:
		m.Status, m.Reasons = Failed, r.Failed()
		return
	}
	if r.Server == nil || r.Server.CPUSource == "" {
		m.Status, m.Reasons = Failed, []string{"the server's CPU time is not known"}
		return
	}
	s := r.Server
	m.Deliveries, m.CPUS, m.CPUPerDeliveryUS = r.Generator.Deliveries, s.CPUS, s.CPUPerDeliveryUS
	m.BytesIn, m.BytesOut = s.BytesIn, s.BytesOut
	m.MedianMS, m.P99MS = r.Latency.MedianMS, r.Latency.P99MS
	m.ResidentBytes = s.ResidentConnectedBytes - s.ResidentBeforeBytes
	m.ResidentEndBytes = s.ResidentEndBytes - s.ResidentBeforeBytes
}

// stopTime is what a load test gets to stop its server when it is told to end.
const stopTime = 20 * time.Second

// runChild runs a load test and reads its result, whatever its exit code says.
func runChild(ctx context.Context, binary string, args []string) (loadtest.Result, error) {
	cmd := exec.CommandContext(ctx, binary, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopTime
	err := cmd.Run()
	var result loadtest.Result
	if out.Len() == 0 {
		return result, fmt.Errorf("%w: %s", errors.Join(err, ctx.Err()), lastLine(said.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		return result, fmt.Errorf("result of the load test: %w", err)
	}
	return result, nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
