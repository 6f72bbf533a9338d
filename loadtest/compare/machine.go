package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// A Machine is where the comparison ran: load generator and server together.
type Machine struct {
	Cores       int    `json:"cores"`
	CPU         string `json:"cpu,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	System      string `json:"system"`
	Kernel      string `json:"kernel,omitempty"`
	OpenFiles   int    `json:"open_files"` // of each process
	GoVersion   string `json:"go_version"`
}

// describeMachine leaves out what cannot be read, and what names the machine.
func describeMachine() Machine {
	return Machine{
		Cores:       runtime.NumCPU(),
		CPU:         field("/proc/cpuinfo", "model name", ":"),
		MemoryBytes: memoryBytes(field("/proc/meminfo", "MemTotal", ":")),
		System:      strings.TrimSpace(runtime.GOOS + "/" + runtime.GOARCH + " " + strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`)),
		Kernel:      kernel(),
		OpenFiles:   openFiles,
		GoVersion:   runtime.Version(),
	}
}

// kernel returns the numbers alone: what follows may name who built it.
func kernel() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	version, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
	return version
}

// field returns the first value of a key in a file of lines.
func field(file, key, separator string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if k, value, ok := strings.Cut(line, separator); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// memoryBytes reads what the kernel writes: "24684092 kB".
func memoryBytes(text string) int64 {
	number, _, _ := strings.Cut(text, " ")
	kibibytes, _ := strconv.ParseInt(number, 10, 64)
	return kibibytes << 10
}

// machineTime is how the machine's time was spent since it began, in ticks.
type machineTime struct{ total, stolen uint64 }

// readMachineTime returns zeros where there is no /proc.
func readMachineTime() machineTime {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	return parseMachineTime(line)
}

// parseMachineTime reads: cpu user nice system idle iowait irq softirq steal
// guest guest_nice. The last two are in the first two already.
func parseMachineTime(line string) machineTime {
	const steal, all = 7, 8
	var t machineTime
	fields := strings.Fields(line)
	if len(fields) <= all || fields[0] != "cpu" {
		return t
	}
	for i, text := range fields[1 : all+1] {
		ticks, _ := strconv.ParseUint(text, 10, 64)
		t.total += ticks
		if i == steal {
			t.stolen = ticks
		}
	}
	return t
}

func (t machineTime) stealSince(before machineTime) float64 {
	if t.total <= before.total {
		return 0
	}
	return float64(t.stolen-before.stolen) / float64(t.total-before.total)
}
