package report

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/transports"
)

func measuredTransports() transports.Result {
	spread := func(mean float64) transports.Spread {
		return transports.Spread{Mean: mean, Stdev: mean / 20, Min: mean * 0.9, Max: mean * 1.1}
	}
	row := func(transport, format, way string, perSecond float64) transports.Row {
		return transports.Row{
			Transport: transport, Format: format, Way: way, Messages: 200_000, PerSecond: spread(perSecond),
			BytesIn: 245.03, BytesOut: 0.5, ServerUS: spread(0.25), ClientUS: spread(0.2), ClientBusy: 0.5,
		}
	}
	writer := row(transports.BareWriter, transports.CBOR, transports.Filled, 3e6)
	writer.Floor, writer.ClientBusy, writer.ClientBound = true, 0.95, true
	live := row(transports.Multiple, transports.JSON, transports.Live, 90_000)
	live.Lost, live.Gaps, live.PublisherUS = 3, 1, spread(0.4)
	return transports.Result{
		Scenario: "transports", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), TookS: 61, Environment: environment,
		Parameters: transports.Parameters{
			Target: "http://127.0.0.1:1", StartedServer: true, ServerFlags: []string{"--history-age=24h"}, Clients: 1, Messages: 200_000, SingleMessages: 20_000, Repeats: 10,
		},
		Payload: transports.PayloadBytes{Text: 169, JSON: 230, CBOR: 190}, PublishPerSecond: 123_456,
		Rows: []transports.Row{
			row(transports.Single, transports.CBOR, transports.Filled, 35_000), row(transports.BareLoop, transports.CBOR, transports.Filled, 40_000),
			row(transports.Multiple, transports.CBOR, transports.Filled, 2.2e6), row(transports.TCP, transports.CBOR, transports.Filled, 2.3e6), writer, live,
		},
		Ratios: []transports.Ratio{
			{Name: "many ÷ one per poll, CBOR", Way: transports.Filled, Value: 62.9, Rounds: spread(63), Theirs: 910},
			{Name: "many per poll ÷ TCP, CBOR", Way: transports.Filled, Value: 0.957, Rounds: spread(0.95), Theirs: 0.88, Want: 0.88},
			{Name: "TCP ÷ floor", Way: transports.Filled, Value: 0.767, Rounds: spread(0.77), Want: 0.8, Bound: true},
		},
		Missed: []string{"multiple, json, live: 3 lost, 0 duplicates, 0 out of order, 1 gaps"}, ExitCode: loadtest.ExitMissed,
	}
}

func TestTransports(t *testing.T) {
	var table, bars, page bytes.Buffer
	require.NoError(t, TransportsTable(&table, measuredTransports()))
	wantGolden(t, "transports.txt", table.Bytes())
	require.NoError(t, TransportsBars(measuredTransports()).SVG(&bars))
	wantXML(t, bars.Bytes())
	wantGolden(t, "transports.svg", bars.Bytes())
	require.NoError(t, TransportsHTML(&page, measuredTransports()))
	require.Contains(t, page.String(), "many per poll ÷ TCP")
	require.Contains(t, page.String(), bars.String())
}

// A measurement that failed at once has a table, too.
func TestTransportsThatWereNotMeasured(t *testing.T) {
	var table, bars bytes.Buffer
	r := transports.Result{
		Rows:   []transports.Row{{Transport: transports.TCP, Format: transports.CBOR, Way: transports.Filled}},
		Failed: []string{"tcp cbor filled: connect: refused"}, Parameters: transports.Parameters{Clients: 7},
	}
	require.NoError(t, TransportsTable(&table, r))
	require.Contains(t, table.String(), "FAILED")
	require.Contains(t, table.String(), "tcp cbor filled: connect: refused")
	require.NoError(t, TransportsBars(r).SVG(&bars))
	wantXML(t, bars.Bytes())
	require.Contains(t, bars.String(), "to 7 clients together")
	require.NotContains(t, bars.String(), "NaN")
	require.NotContains(t, bars.String(), "Inf")
}
