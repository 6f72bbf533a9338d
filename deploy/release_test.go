//go:build packaging

package deploy_test

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
)

// release makes a release in a new directory, and returns the directory.
func release(t *testing.T, platforms string, environment ...string) string {
	t.Helper()
	for _, program := range []string{"npm", "sha256sum"} {
		if _, err := exec.LookPath(program); err != nil {
			missing(t, program+" is not installed", "install nodejs, npm and coreutils")
		}
	}
	if runtime.GOOS != "linux" {
		missing(t, "the script needs GNU tar", "make releases on Linux")
	}
	if _, err := os.Stat("../.tools/release/installed"); err != nil {
		missing(t, "the script needs Python's build", "run make .tools/release/installed, or make deploy")
	}
	dir := filepath.Join(t.TempDir(), "dist")
	command := exec.CommandContext(t.Context(), "sh", "-c", `umask "$MASK"; exec deploy/release.sh "$0"`, dir)
	command.Dir = ".."
	command.Env = append(append(os.Environ(), "VERSION=v1.2.3", "PLATFORMS="+platforms), environment...)
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

// A release that is made twice has the same bytes, whatever the time, the time zone, the user's
// umask and the directory.
func TestAReleaseIsReproducible(t *testing.T) {
	platforms := []string{"linux/amd64"}
	if exhaustive.On() {
		platforms = append(platforms, "linux/arm64", "darwin/arm64")
	}
	dir := release(t, strings.Join(platforms, " "), "MASK=022", "TZ=UTC")
	sums := read(t, filepath.Join(dir, "SHA256SUMS"))
	require.Equal(t, sums, read(t, filepath.Join(release(t, strings.Join(platforms, " "), "MASK=077", "TZ=Asia/Tokyo"), "SHA256SUMS")))

	var names []string
	for line := range strings.Lines(sums) {
		_, name, _ := strings.Cut(line, " ")
		names = append(names, strings.TrimSpace(name))
	}
	chartFile := "pubsubd-" + instruction(t, read(t, "helm/pubsubd/Chart.yaml"), `version: (.*)`) + ".tgz"
	clientFile := "pubsubjs-" + instruction(t, read(t, "../pkg/pubsubjs/package.json"), `  "version": "(.*)",`) + ".tgz"
	python := "pubsubpy-" + instruction(t, read(t, "../pkg/pubsubpy/pyproject.toml"), `version = "(.*)"`)
	want := []string{chartFile, clientFile, python + ".tar.gz", python + "-py3-none-any.whl"}
	for _, platform := range platforms {
		name := "pubsubd-v1.2.3-" + strings.ReplaceAll(platform, "/", "-")
		want = append(want, name, name+".cdx.json", name+".notices.txt")
		wantNotices(t, filepath.Join(dir, name), filepath.Join(dir, name+".notices.txt"))
	}
	require.ElementsMatch(t, want, names)

	binary, err := elf.Open(filepath.Join(dir, "pubsubd-v1.2.3-linux-amd64"))
	require.NoError(t, err)
	defer func() { _ = binary.Close() }()
	libraries, err := binary.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries, "it is static")

	var sbom struct {
		BOMFormat string
		Metadata  struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, filepath.Join(dir, "pubsubd-v1.2.3-linux-amd64.cdx.json"))), &sbom))
	require.Equal(t, "CycloneDX", sbom.BOMFormat)
	require.Equal(t, "github.com/pubsubd/pubsubd", sbom.Metadata.Component.Name)
	require.Equal(t, "v1.2.3", sbom.Metadata.Component.Version)
	var components []string
	for _, c := range sbom.Components {
		components = append(components, c.Name)
	}
	require.Subset(t, components, []string{"std", "github.com/spf13/cobra", "go.uber.org/zap"})

	chart := archive(t, filepath.Join(dir, chartFile))
	require.Equal(t, read(t, "prometheus/alerts.yaml"), chart["pubsubd/files/alerts.yaml"], "the archive has files in place of links")
	require.Contains(t, chart["pubsubd/values.schema.json"], "hookSecrets")
	require.Equal(t, read(t, "../LICENSE"), chart["pubsubd/LICENSE"])
	client := archive(t, filepath.Join(dir, clientFile))
	require.Equal(t, read(t, "../pkg/pubsubjs/dist/client.js"), client["package/dist/client.js"])
	require.Equal(t, read(t, "../LICENSE"), client["package/LICENSE"])
	require.Equal(t, read(t, "../pkg/pubsubjs/README.md"), client["package/README.md"])
	var manifest struct{ Exports map[string]map[string]string }
	require.NoError(t, json.Unmarshal([]byte(client["package/package.json"]), &manifest))
	require.NotEmpty(t, manifest.Exports)
	for _, files := range manifest.Exports {
		for _, file := range files {
			require.Contains(t, client, path.Join("package", file), "package.json exports it")
		}
	}
	source := archive(t, filepath.Join(dir, python+".tar.gz"))
	require.Equal(t, read(t, "../pkg/pubsubpy/README.md"), source[python+"/README.md"], "the index shows it")
	require.Contains(t, source[python+"/PKG-INFO"], "\nLicense-Expression: Apache-2.0\n")
}

// wantNotices checks that a file has the licence of each module in a binary, and what comes with
// the licences: notices (Apache-2.0, section 4), and licences of code that a module took over.
func wantNotices(t *testing.T, binary, file string) {
	t.Helper()
	text := read(t, file)
	require.True(t, strings.HasPrefix(text, read(t, "../LICENSE")), "pubsubd's own licence comes first")
	built, err := buildinfo.ReadFile(binary)
	require.NoError(t, err)
	require.NotEmpty(t, built.Deps)
	for _, m := range built.Deps {
		require.Contains(t, text, "\n"+m.Path+"@"+m.Version+"/LICENSE")
	}
	require.Contains(t, text, "\n"+built.GoVersion+"/LICENSE\n\nCopyright 2009 The Go Authors.")
	require.Contains(t, text, "/NOTICE\n\nPrometheus instrumentation library for Go applications\n")
	require.Regexp(t, `(?m)^github\.com/prometheus/client_golang@\S+/golang/gddo/LICENSE$`, text)
}

// archive returns the files of a .tgz.
func archive(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	files := map[string]string{}
	for r := tar.NewReader(unzipped); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		files[head.Name] = string(text)
	}
}

// install puts the binary where PREFIX or GOBIN says, with PREFIX also the manual pages.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	install := func(arguments ...string) {
		said, err := run(t, "make", append([]string{"-C", "..", "--no-print-directory", "install", "VERSION=v1.2.3"}, arguments...)...)
		require.NoError(t, err, said)
	}
	install("PREFIX=/usr", "DESTDIR="+dir)
	said, err := run(t, dir+"/usr/bin/pubsubd", "version")
	require.NoError(t, err, said)
	require.Contains(t, said, "pubsubd v1.2.3 ")
	require.FileExists(t, dir+"/usr/share/man/man1/pubsubd-serve.1")

	t.Setenv("GOBIN", filepath.Join(dir, "gobin"))
	install()
	files, err := filepath.Glob(dir + "/gobin/*")
	require.NoError(t, err)
	require.True(t, slices.Equal([]string{dir + "/gobin/pubsubd"}, files), files)
}
