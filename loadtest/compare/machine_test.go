package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStealIsAShareOfTheMachinesTime(t *testing.T) {
	before := parseMachineTime("cpu  100 0 100 800 0 0 0 0 50 0")
	after := parseMachineTime("cpu  150 0 120 920 0 0 0 10 70 0")
	require.InDelta(t, 0.05, after.stealSince(before), 1e-9)
	require.Zero(t, machineTime{}.stealSince(machineTime{}))
	require.Zero(t, parseMachineTime("no such line").total)
}

func TestMemoryInBytes(t *testing.T) {
	require.EqualValues(t, 2048, memoryBytes("2 kB"))
	require.Zero(t, memoryBytes(""))
}
