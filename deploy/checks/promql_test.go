package checks

import (
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

var promQL = parser.NewParser(parser.Options{})

// metricsOf parses an expression and returns the metrics that it names.
func metricsOf(t *testing.T, expression string) []string {
	t.Helper()
	parsed, err := promQL.ParseExpr(expression)
	require.NoError(t, err, expression)
	var names []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	require.NotEmpty(t, names, expression)
	return names
}

// prometheusOwn are the metrics that Prometheus makes of a scrape.
var prometheusOwn = []string{"up"}
