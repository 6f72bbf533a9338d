package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
)

func TestWhatRoseIsToldByLabel(t *testing.T) {
	before := loadtest.Metrics{`pubsubd_limited_total{limit="calls"}`: 5, `pubsubd_limited_total{limit="sessions"}`: 1}
	after := loadtest.Metrics{
		`pubsubd_limited_total{limit="calls"}`: 7, `pubsubd_limited_total{limit="sessions"}`: 1,
		`pubsubd_limited_total{limit="rates.polls.address"}`: 3, `pubsubd_limited_totals{limit="x"}`: 9,
	}
	require.Equal(t, map[string]int64{"calls": 2, "rates.polls.address": 3}, rises(before, after, "pubsubd_limited_total"))
	require.InDelta(t, 11, sum(after, "pubsubd_limited_total"), 0)
}

func TestADaemonThatDoesNotStart(t *testing.T) {
	var log bytes.Buffer
	require.Equal(t, exitFailed, start(t.Context(), []string{"-pubsubd", "no-such-program", "-out", t.TempDir()}, nil, nil, &log))
	require.Contains(t, log.String(), "start the server")
}
