// Package internal_test holds what no single package can: who imports whom.
package internal_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const module = "github.com/pubsubd/pubsubd"

// floors are the ladder of imports, the top first. A room may import what stands
// on a lower floor; rooms of one floor do not know each other. pkg/wire stands
// alone below all, since everyone speaks it.
var floors = [][]string{
	{"cmd"},
	{"internal/daemon"},
	{"internal/config"},
	{"internal/httpapi"},
	{"internal/lane"},
	{"internal/app"},
	{"internal/request"},
	{"internal/transport", "internal/listen", "internal/cors", "internal/acme"},
	{"internal/presence"},
	{"internal/session", "internal/store"},
	{"internal/token", "internal/entry"},
	{"internal/broker", "internal/auth", "internal/limit", "internal/hook"},
	{"internal/frame"},
	{"internal/memory", "internal/observe"},
	{"internal/metrics", "internal/durable", "pkg/pubsub", "pkg/pubsubjs"},
	{"internal/problem"},
	{"pkg/wire"},
}

// beside are rooms with a list of their own instead of a floor, or besides one.
var beside = map[string][]string{
	"cmd": {"internal/daemon", "internal/config", "internal/auth", "internal/token", "internal/store", "loadtest", "deploy", "pkg/wire", "pkg/pubsub",
		"internal/listen", "internal/memory"}, // commands make tokens and keys, look into logs, ask what limits the daemon would have, and print guides
	"loadtest": {"pkg/wire", "pkg/pubsub"},
	"deploy":   {"pkg/wire", "pkg/pubsub"}, // the examples are applications
}

func TestImportsOnlyGoDown(t *testing.T) {
	found, err := violations(os.DirFS(".."))
	require.NoError(t, err)
	require.Empty(t, found, "\n%s", strings.Join(found, "\n"))
}

// The ladder lists only rooms that exist, and documents name only files that exist.
func TestWhatIsNamedExists(t *testing.T) {
	for _, rooms := range floors {
		for _, room := range rooms {
			require.DirExists(t, path.Join("..", room))
		}
	}
	for _, document := range []string{
		"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "loadtest/README.md", "deploy/README.md", "deploy/HOOKS.md", "deploy/SETTINGS.md", "deploy/METRICS.md",
		"pkg/README.md", "pkg/BUILDING.md", "pkg/COMPARED.md", "pkg/wire/PROTOCOL.md", "pkg/wire/CLIENTS.md",
		"pkg/pubsub/README.md", "pkg/pubsubjs/README.md", "pkg/pubsubpy/README.md",
	} {
		text := read(t, document)
		for _, file := range goFiles.FindAllString(text, -1) {
			require.FileExists(t, path.Join("..", file), "%s names it", document)
		}
		for _, link := range links.FindAllStringSubmatch(text, -1) {
			file := path.Join(path.Dir(document), link[1]+link[3])
			if link[1]+link[3] == "" {
				file = document
			}
			_, err := os.Stat(path.Join("..", file))
			require.NoError(t, err, "%s links to it", document)
			if link[2] != "" {
				require.Contains(t, anchors(read(t, file)), link[2], "%s links to it in %s", document, file)
			}
		}
	}
}

// There is one glossary, and the first lines of each page for people who build link to it.
func TestPagesLinkToTheGlossary(t *testing.T) {
	for _, document := range []string{"pkg/README.md", "pkg/BUILDING.md", "pkg/COMPARED.md", "pkg/wire/PROTOCOL.md", "pkg/wire/CLIENTS.md", "pkg/pubsub/README.md", "pkg/pubsubjs/README.md", "pkg/pubsubpy/README.md", "deploy/SETTINGS.md", "deploy/METRICS.md"} {
		text := read(t, document)
		require.Equal(t, document == "pkg/README.md", strings.Contains(text, "\n## Glossary\n"), document)
		first := strings.Join(strings.SplitN(text, "\n", 9)[:8], "\n")
		require.Regexp(t, `\]\((\.\./(pkg/)?)?(README\.md)?#glossary\)`, first, document)
	}
}

// What README installs exists: the command, and the file that it downloads.
func TestWhatREADMEInstallsExists(t *testing.T) {
	text := read(t, "README.md")
	command := regexp.MustCompile(`go install ` + module + `/(\S+)@latest`).FindStringSubmatch(text)
	require.NotNil(t, command)
	require.DirExists(t, path.Join("..", command[1]))
	image := regexp.MustCompile(`docker build \S+ \S+ -f (\S+) https://` + module + `\.git`).FindStringSubmatch(text)
	require.NotNil(t, image)
	require.FileExists(t, path.Join("..", image[1]))
	compose := regexp.MustCompile(`githubusercontent\.com/pubsubd/pubsubd/main/(\S+)`).FindStringSubmatch(text)
	require.NotNil(t, compose)
	require.FileExists(t, path.Join("..", compose[1]))
}

// The pictures in README for light and for dark pages differ only in their colours.
func TestThePicturesOfREADMEAreAlike(t *testing.T) {
	colours := regexp.MustCompile(`#[0-9a-f]{6}`)
	light, dark := read(t, "pkg/overview.svg"), read(t, "pkg/overview-dark.svg")
	require.NotEqual(t, light, dark)
	require.Equal(t, colours.ReplaceAllString(light, "#"), colours.ReplaceAllString(dark, "#"))
}

// A long page begins with a table of contents, which has every chapter.
func TestLongPagesHaveATableOfContents(t *testing.T) {
	for document, level := range map[string]string{"deploy/README.md": "##+", "deploy/HOOKS.md": "##", "deploy/SETTINGS.md": "##", "deploy/METRICS.md": "##", "SECURITY.md": "##"} {
		text := read(t, document)
		contents, _, found := strings.Cut(text, "\n## ")
		require.True(t, found, document)
		for _, heading := range regexp.MustCompile(`(?m)^`+level+` .*$`).FindAllString(text, -1) {
			require.Contains(t, contents, "(#"+anchors(heading)[0]+")", "the table of contents of %s lacks %q", document, heading)
		}
	}
}

// anchors returns the anchors that a forge gives to the headings of a document.
func anchors(document string) []string {
	var all []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(document, -1) {
		plain := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

var (
	goFiles = regexp.MustCompile(`\b(cmd|internal|pkg|loadtest)/[a-z0-9_/]+\.go\b`)
	links   = regexp.MustCompile(`\]\(([^:)#]*)(?:#([^)]*))?\)|(?:src|srcset)="([^":]+)"`) // without those to other sites
)

// The picture shows the packages that a message passes, and no others but those that they
// ask and where connections come in.
func TestThePictureShowsTheWayOfAMessage(t *testing.T) {
	_, way, found := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## One message's way\n")
	require.True(t, found)
	way, _, _ = strings.Cut(way, "\n## ")
	shown := []string{"internal/auth", "internal/hook", "internal/limit", "internal/listen", "internal/store"}
	for _, file := range goFiles.FindAllString(way, -1) {
		shown = append(shown, room(path.Dir(file)))
	}
	slices.Sort(shown)
	drawn := regexp.MustCompile(`internal/\w+`).FindAllString(read(t, "internal/architecture.svg"), -1)
	slices.Sort(drawn)
	require.Equal(t, slices.Compact(shown), slices.Compact(drawn))
}

// The daemon serves without what only tests and the load generator need, directly or not: the
// readers of OpenAPI documents, and histograms.
func TestTheDaemonDoesNotImportWhatMeasuresIt(t *testing.T) {
	listed, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./daemon").Output()
	require.NoError(t, err)
	imported := strings.Fields(string(listed))
	require.Contains(t, imported, module+"/internal/lane")
	for _, path := range imported {
		for _, unwanted := range []string{"github.com/getkin/kin-openapi", "github.com/HdrHistogram", module + "/loadtest"} {
			require.False(t, strings.HasPrefix(path, unwanted), "internal/daemon imports %s", path)
		}
	}
}

func read(t *testing.T, document string) string {
	t.Helper()
	text, err := os.ReadFile(path.Join("..", document))
	require.NoError(t, err)
	return string(text)
}

// violations returns a line for each import in a non-test Go file, whatever its
// build tags, that the ladder does not allow.
func violations(tree fs.FS) ([]string, error) {
	var found []string
	err := fs.WalkDir(tree, ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && outside(entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		wrong, err := judgeFile(tree, file)
		found = append(found, wrong...)
		return err
	})
	return found, err
}

// outside holds for directories that the go command does not look into.
func outside(dir string) bool {
	return dir != "." && (strings.HasPrefix(dir, ".") || strings.HasPrefix(dir, "_") || dir == "testdata" || dir == "node_modules")
}

func judgeFile(tree fs.FS, file string) ([]string, error) {
	source, err := fs.ReadFile(tree, file)
	if err != nil {
		return nil, err
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		target, ours := strings.CutPrefix(imported, module+"/")
		if !ours {
			continue
		}
		if why := judge(room(path.Dir(file)), room(target)); why != "" {
			found = append(found, fmt.Sprintf("%s imports %s: %s", file, target, why))
		}
	}
	return found, nil
}

// room returns the part of the house that a directory belongs to: internal/x and
// pkg/x for all below them, else the top level.
func room(dir string) string {
	levels := strings.SplitN(dir, "/", 3)
	if len(levels) > 1 && (levels[0] == "internal" || levels[0] == "pkg") {
		return levels[0] + "/" + levels[1]
	}
	return levels[0]
}

func floor(room string) int {
	return slices.IndexFunc(floors, func(rooms []string) bool { return slices.Contains(rooms, room) })
}

// judge returns why from must not import to, and what to do instead, or nothing.
func judge(from, to string) string {
	allowed, hasList := beside[from]
	switch {
	case from == to:
		return ""
	case hasList && slices.Contains(allowed, to):
		return ""
	case hasList:
		return fmt.Sprintf("%s may know only %s. Let one of these offer what is needed, or take it as an argument", from, strings.Join(allowed, ", "))
	case to == "loadtest":
		return "only cmd may know loadtest: it measures servers from outside. Move what both need to pkg"
	case floor(from) < 0:
		return fmt.Sprintf("%s has no floor. Give it one, in floors here and in CONTRIBUTING.md, or put it where it belongs", from)
	case floor(to) < 0:
		return fmt.Sprintf("%s has no floor. Give it one, in floors here and in CONTRIBUTING.md, or put it where it belongs", to)
	case strings.HasPrefix(from, "pkg/") && strings.HasPrefix(to, "internal/"):
		return "others import pkg, and they cannot have internal. Move what is needed to pkg, or leave it in internal"
	case floor(from) == floor(to):
		return fmt.Sprintf("they stand on one floor and do not know each other. Declare an interface in %s, in types of pkg/wire, and let internal/daemon join the two", from)
	case floor(from) > floor(to):
		return fmt.Sprintf("imports only go down, and %s stands above. Declare an interface in %s, in types of pkg/wire, that %s satisfies", to, from, to)
	}
	return ""
}

// The checker itself: a tree with one of each mistake.
func TestViolationsAreFound(t *testing.T) {
	tree := fstest.MapFS{
		"cmd/pubsubd/serve.go":                      importing("internal/daemon", "internal/config", "loadtest", "pkg/wire", "pkg/pubsub"),
		"cmd/pubsubd/topics.go":                     importing("internal/broker"),
		"internal/daemon/daemon.go":                 importing("internal/config", "internal/httpapi", "internal/metrics", "pkg/wire"),
		"internal/daemon/measure.go":                importing("loadtest/stats"),
		"internal/transport/longpoll.go":            importing("internal/session", "internal/transport/transporttest"),
		"internal/transport/transporttest/suite.go": importing("internal/transport", "internal/httpapi"),
		"internal/broker/topic.go":                  importing("internal/metrics", "pkg/wire", "internal/limit"),
		"internal/broker/topic_linux.go":            tagged("//go:build linux", "internal/session"),
		"internal/broker/topic_test.go":             importing("internal/daemon"),
		"internal/broker/testdata/x/x.go":           importing("internal/daemon"),
		"internal/metrics/metrics.go":               importing("pkg/wire"),
		"internal/util/util.go":                     importing("pkg/wire"),
		"internal/session/session.go":               importing("internal/util"),
		"pkg/wire/wire.go":                          importing("pkg/pubsub"),
		"pkg/pubsub/client.go":                      importing("pkg/wire", "internal/session"),
		"loadtest/run.go":                           importing("pkg/wire", "loadtest/stats"),
		"loadtest/floor/floor.go":                   importing("internal/metrics"),
		"loadtest/stats/stats.go":                   importing(),
		"internal/cors/cors.go":                     importing("internal/listen"),
	}
	found, err := violations(tree)
	require.NoError(t, err)
	require.Equal(t, []string{
		"cmd/pubsubd/topics.go imports internal/broker: cmd may know only",
		"internal/broker/topic.go imports internal/limit: they stand on one floor",
		"internal/broker/topic_linux.go imports internal/session: imports only go down, and internal/session stands above",
		"internal/cors/cors.go imports internal/listen: they stand on one floor",
		"internal/daemon/measure.go imports loadtest/stats: only cmd may know loadtest",
		"internal/session/session.go imports internal/util: internal/util has no floor",
		"internal/transport/transporttest/suite.go imports internal/httpapi: imports only go down, and internal/httpapi stands above",
		"internal/util/util.go imports pkg/wire: internal/util has no floor",
		"loadtest/floor/floor.go imports internal/metrics: loadtest may know only",
		"pkg/pubsub/client.go imports internal/session: others import pkg",
		"pkg/wire/wire.go imports pkg/pubsub: imports only go down, and pkg/pubsub stands above",
	}, beginnings(found))
}

func importing(targets ...string) *fstest.MapFile { return tagged("", targets...) }

func tagged(tag string, targets ...string) *fstest.MapFile {
	source := tag + "\n\npackage x\n\nimport (\n\t\"fmt\"\n"
	for _, target := range targets {
		source += "\t" + strconv.Quote(module+"/"+target) + "\n"
	}
	return &fstest.MapFile{Data: []byte(source + ")\n")}
}

// beginnings cuts each line where it begins to say what to do.
func beginnings(lines []string) []string {
	cut := make([]string, len(lines))
	for i, line := range lines {
		cut[i] = line
		for _, end := range []string{". ", " internal/daemon, ", " pkg/wire, ", " and do not", ", and they", ": it measures"} {
			cut[i], _, _ = strings.Cut(cut[i], end)
		}
	}
	return cut
}
