package deploy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// All parts of a release have the version of its entry in CHANGELOG.md.
func TestAllPartsHaveOneVersion(t *testing.T) {
	version := instruction(t, read(t, "../CHANGELOG.md"), `## \[(.*)\]`)
	for file, place := range map[string]string{
		"../pkg/pubsubjs/package.json":             `  "version": "(.*)",`,
		"../pkg/pubsubjs/package-lock.json":        `  "version": "(.*)",`,
		"../pkg/pubsubpy/pyproject.toml":           `version = "(.*)"`,
		"../pkg/pubsubpy/src/pubsubpy/__init__.py": `__version__ = "(.*)"`,
		"helm/pubsubd/Chart.yaml":                  `appVersion: "(.*)"`,
	} {
		require.Equal(t, version, instruction(t, read(t, file), place), file)
	}
}
