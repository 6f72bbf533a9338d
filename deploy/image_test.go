//go:build packaging

package deploy_test

import (
	"debug/elf"
	"encoding/json"
	"go/version"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An image is what deploy/Dockerfile makes, without Docker: its root, made by the
// script that the Dockerfile runs, and what it says of how to run it.
type image struct {
	*testing.T
	root       string
	user       int
	entrypoint []string
	health     []string
}

func words(t *testing.T, array string) []string {
	t.Helper()
	var all []string
	require.NoError(t, json.Unmarshal([]byte(array), &all), array)
	return all
}

func buildImage(t *testing.T) *image {
	t.Helper()
	dockerfile := read(t, "Dockerfile")
	user, err := strconv.Atoi(instruction(t, dockerfile, `USER (\d+):\d+`))
	require.NoError(t, err)
	i := &image{
		T: t, user: user,
		entrypoint: words(t, instruction(t, dockerfile, `ENTRYPOINT (\[.*\])`)),
		health:     words(t, instruction(t, dockerfile, `HEALTHCHECK .*CMD (\[.*\])`)),
	}
	require.Contains(t, dockerfile, "deploy/rootfs.sh /rootfs\n")
	i.root, err = os.MkdirTemp("", "rootfs") // t.TempDir is for root only, all the way up
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(i.root) })
	require.NoError(t, os.Chmod(i.root, 0o755))
	command := exec.CommandContext(t.Context(), "deploy/rootfs.sh", i.root)
	command.Dir, command.Env = "..", append(os.Environ(), "VERSION=v0.0.0-image")
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	return i
}

// The image holds the binary with its notices, and a directory. The binary needs nothing else.
func TestTheImageHoldsOneStaticBinary(t *testing.T) {
	i := buildImage(t)
	var files []string
	require.NoError(t, filepath.WalkDir(i.root, func(path string, _ fs.DirEntry, err error) error {
		files = append(files, strings.TrimPrefix(path, i.root))
		return err
	}))
	require.Equal(t, []string{"", "/NOTICES.txt", "/pubsubd", "/var", "/var/lib", "/var/lib/pubsubd"}, files)
	require.Contains(t, read(t, "Dockerfile"), "COPY --from=build /rootfs/pubsubd /rootfs/NOTICES.txt /\n")
	wantNotices(t, i.root+"/pubsubd", i.root+"/NOTICES.txt")
	if runtime.GOOS != "linux" {
		return // what is built here is not what goes into an image
	}
	binary, err := elf.Open(filepath.Join(i.root, "pubsubd"))
	require.NoError(t, err)
	defer func() { _ = binary.Close() }()
	libraries, err := binary.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	for _, part := range binary.Progs {
		require.NotEqual(t, elf.PT_INTERP, part.Type, "it is linked dynamically")
	}
}

// The image runs as it would in a container: in its own root, as nobody in
// particular, with the entry point and the health check of the Dockerfile.
func TestTheImageRuns(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		missing(t, "only root on Linux can change the root directory", "run this test as root")
	}
	i := buildImage(t)
	state := filepath.Join(i.root, "var/lib/pubsubd")
	require.NoError(t, os.Chown(state, i.user, i.user)) // COPY --chown

	daemon := i.command(append(i.entrypoint, "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--addresses-file=/var/lib/pubsubd/addresses"))
	daemon.Env = []string{instruction(t, read(t, "Dockerfile"), `ENV (PUBSUBD_STORE_DIR=/var/lib/pubsubd/\S+)`)}
	var said strings.Builder
	daemon.Stdout, daemon.Stderr = &said, &said
	require.NoError(t, daemon.Start())
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = daemon.Process.Kill()
			_ = daemon.Wait()
		}
	})
	at := waitAddresses(t, filepath.Join(state, "addresses"))

	resp, err := http.Post("http://"+at["public"]+"/v1/topics/a/messages", "application/json", strings.NewReader("1"))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, string(body))
	log, err := filepath.Glob(filepath.Join(state, "store", "*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, log, "the message is on the volume")

	// The check has two seconds, and containers are asked again and again.
	require.Eventually(t, func() bool { return i.healthy(at["admin"]) }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, daemon.Process.Signal(os.Interrupt))
	ended = true
	require.NoError(t, daemon.Wait(), said.String())
	require.Contains(t, said.String(), `"drained"`)
	require.False(t, i.healthy(at["admin"]))
}

// healthy runs the health check, in an environment that says where the daemon
// listens, as the container's would.
func (i *image) healthy(admin string) bool {
	i.Helper()
	check := i.command(i.health)
	check.Env = []string{"PUBSUBD_LISTEN_ADMIN=" + admin}
	out, err := check.CombinedOutput()
	i.Logf("%s", out)
	return err == nil
}

func waitAddresses(t *testing.T, file string) map[string]string {
	t.Helper()
	at := map[string]string{}
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(text, &at) == nil
	}, 30*time.Second, 5*time.Millisecond)
	return at
}

// The image is built by a Go that the module may be built with.
func TestTheImageIsBuiltByAGoThatWillDo(t *testing.T) {
	builder := instruction(t, read(t, "Dockerfile"), `ARG GO_VERSION=(\d+\.\d+\.\d+)`)
	wanted := instruction(t, read(t, "../go.mod"), `go (\S+)`)
	require.GreaterOrEqual(t, version.Compare("go"+builder, "go"+wanted), 0, "%s is older than %s", builder, wanted)
}

// With what the Dockerfile's comment says, the daemon would start; without insecure
// it would not.
func TestTheImageHasToBeToldThatItServesEveryone(t *testing.T) {
	var environment []string
	for _, found := range regexp.MustCompile(`-e (PUBSUBD_\S+)`).FindAllStringSubmatch(read(t, "Dockerfile"), -1) {
		environment = append(environment, found[1])
	}
	cfg, err := load(t, environment)
	require.NoError(t, err)
	require.Equal(t, ":8080", cfg.Listen.Public)
	_, err = load(t, environment[:1])
	require.ErrorContains(t, err, "insecure")
}
