package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
)

var update = flag.Bool("update", false, "write what happens into the transcripts")

// The transcripts in our documents are true. The test runs each ```console, ```websocket
// and ```tcp block line by line and compares the output with the document. It interprets
// the few curl options that they use. In the output, … stands for what differs from run to
// run. For readers of README, who have a store, that includes offsets.
func TestTheTranscriptsOfTheDocumentsAreTrue(t *testing.T) {
	t.Parallel()
	for path, change := range map[string]func(c *config.Config){
		"../../pkg/wire/PROTOCOL.md": func(c *config.Config) {
			c.Listen.TCP, c.Broker.HistoryMessages, c.Session.Queue, c.Session.PatternBytes = "127.0.0.1:0", 3, 2, 700
			c.Broker.Rules = []broker.Rule{{Name: "lobby", Pattern: "lobby.*", Presence: true, PresenceGrace: 3 * time.Second}, {Name: "cursors", Pattern: "cursors.*", Ephemeral: true}}
		},
		"../../README.md":       nil,
		"../../pkg/README.md":   nil,
		"../../pkg/COMPARED.md": nil,
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			shell := &shell{running: start(t, change), vars: map[string]string{}, hidesOffsets: path == "../../README.md"}
			blocks := 0
			happened := exampleBlock.ReplaceAllStringFunc(string(text), func(block string) string {
				blocks++
				return shell.replay(block)
			})
			require.NotZero(t, blocks)
			happened = shell.withFollowed(happened)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(happened), 0o644))
				return
			}
			require.Equal(t, string(text), happened, "if this is right, run the test with -update")
		})
	}
}

var exampleBlock = regexp.MustCompile("(?ms)^```(console|websocket|tcp)\n(.*?)^```")

// shell runs the commands of a transcript.
type shell struct {
	*running
	vars    map[string]string
	guarded *running // a daemon with authorisation; nil until a command needs it

	hidesOffsets bool
	followed     []func() string // what each curl -N printed
}

// replay runs a block and returns it with the actual output.
func (s *shell) replay(block string) string {
	s.Helper()
	parts := exampleBlock.FindStringSubmatch(block)
	if kind, lines := parts[1], parts[2]; kind != "console" {
		return "```" + kind + "\n" + s.talk(kind, lines) + "```"
	}
	var b strings.Builder
	b.WriteString("```console\n")
	for line := range strings.Lines(parts[2]) {
		if command, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ "); ok {
			b.WriteString("$ " + command + "\n" + s.alike(s.run(command)))
		}
	}
	return b.String() + "```"
}

var wholePosition = regexp.MustCompile(`@\w{7,}:\d+`)

// alike masks what differs from run to run.
func (s *shell) alike(text string) string {
	if s.hidesOffsets {
		text = wholePosition.ReplaceAllString(text, "@…")
	}
	for _, pattern := range []string{`@(\w{7,}):`, `(?m)^retry: (\d+)$`, `(?m)^id: ~([^:]+):`, `"time":(\d+)`, `^\[0,"[^"]+","(\w+)"`, `^\[0,"[^"]+","…",\d+,(\d+)`, `"idle_ms":(\d+)`, `"since":(\d+)`, `"session":"([^"]+)"`, `again after (\d[^"]+)"`, `"limits":{([^}]+)}`} {
		re := regexp.MustCompile(pattern)
		text = re.ReplaceAllStringFunc(text, func(match string) string {
			return strings.Replace(match, re.FindStringSubmatch(match)[1], "…", 1)
		})
	}
	return text
}

var assignment = regexp.MustCompile(`^(\w+)=\$\((curl .*) \| sed 's/\.\*"(\w+)":"\\\(\[\^"\]\*\\\)"\.\*/\\1/'\)$`)

func (s *shell) run(command string) string {
	s.Helper()
	if a := assignment.FindStringSubmatch(command); a != nil {
		found := regexp.MustCompile(`"` + a[3] + `":"([^"]*)"`).FindStringSubmatch(s.run(a[2]))
		require.NotNil(s, found, command)
		s.vars[a[1]] = found[1]
		return ""
	}
	words := s.words(command)
	switch words[0] {
	case "sleep":
		seconds, err := strconv.Atoi(words[1])
		require.NoError(s, err)
		time.Sleep(time.Duration(seconds) * time.Second)
		return ""
	case "curl":
		if words[1] == "-N" {
			return s.follow(words[2])
		}
		return s.curl(words[1:])
	}
	require.Fail(s, "a transcript has a command that is not known here", command)
	return ""
}

var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// words splits a command as a shell does. Quotes must enclose a whole word.
func (s *shell) words(command string) []string {
	var words []string
	for _, w := range word.FindAllString(command, -1) {
		if single, ok := strings.CutPrefix(w, "'"); ok {
			words = append(words, strings.TrimSuffix(single, "'"))
			continue
		}
		words = append(words, s.expand(strings.Trim(w, `"`)))
	}
	return words
}

// untilMS is the end of a prohibition, a date in the document. In the test, it is in an hour.
var untilMS = regexp.MustCompile(`"until_ms":\d+`)

func (s *shell) curl(args []string) string {
	s.Helper()
	method, body, url, leave := "", "", "", time.Minute
	header := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	for i := 0; i < len(args); i++ {
		option := args[i]
		if !strings.HasPrefix(option, "-") {
			url = "http://" + option
			continue
		}
		if strings.Trim(option, "-sN") == "" { // silent, and without a buffer
			continue
		}
		i++
		switch option {
		case "-m": // curl's timeout in seconds; here it bounds silence, and is doubled because either side may be slow
			seconds, err := time.ParseDuration(args[i] + "s")
			require.NoError(s, err)
			leave = 2 * seconds
		case "--json":
			body = untilMS.ReplaceAllString(args[i], fmt.Sprintf(`"until_ms":%d`, time.Now().Add(time.Hour).UnixMilli()))
			header.Set("Content-Type", "application/json")
		case "-d":
			body = args[i]
		case "-X":
			method = args[i]
		case "-H":
			name, value, _ := strings.Cut(args[i], ": ")
			header.Set(name, value)
		default:
			require.Fail(s, "a transcript has an option of curl that is not known here", option)
		}
	}
	if method == "" && body != "" {
		method = http.MethodPost
	}
	var printed strings.Builder
	if guarded := "localhost:8090"; strings.Contains(url, guarded) {
		url = strings.Replace(url, guarded, s.withAuthorisation().PublicAddr(), 1)
	}
	for _, each := range unglob(strings.NewReplacer("localhost:8080", s.PublicAddr(), "localhost:8081", s.AdminAddr()).Replace(url)) {
		printed.WriteString(s.request(leave, method, each, body, header))
	}
	return printed.String()
}

// withAuthorisation returns a daemon at which everyone may use open.>, the API key psk_example may
// publish to chat.>, and psk_backend may manage the clients of chat.>.
func (s *shell) withAuthorisation() *running {
	s.Helper()
	if s.guarded == nil {
		file := filepath.Join(s.TempDir(), "keys")
		var keys strings.Builder
		for name, right := range map[string]string{"example": "publish", "backend": "manage"} {
			fmt.Fprintf(&keys, `{"name":"%s","hash":"%x","rights":[{"topics":["chat.>"],"allow":["%s"]}],"created":"2026-01-01T00:00:00Z"}`+"\n",
				name, sha256.Sum256([]byte("psk_"+name)), right)
		}
		require.NoError(s, os.WriteFile(file, []byte(keys.String()), 0o600))
		s.guarded = start(s.T, func(c *config.Config) {
			c.Auth.Revocations = filepath.Join(s.TempDir(), "revocations")
			c.Auth.APIKeys, c.Auth.Anonymous = file, `[{"topics":["open.>"],"allow":["publish","subscribe"]}]`
		})
	}
	return s.guarded
}

var glob = regexp.MustCompile(`\[(\d+)-(\d+)\]`)

// unglob returns the URLs that curl makes of a range such as [1-4].
func unglob(url string) []string {
	r := glob.FindStringSubmatch(url)
	if r == nil {
		return []string{url}
	}
	from, _ := strconv.Atoi(r[1])
	to, _ := strconv.Atoi(r[2])
	var urls []string
	for i := from; i <= to; i++ {
		urls = append(urls, strings.Replace(url, r[0], strconv.Itoa(i), 1))
	}
	return urls
}

// request returns the answer until it ends, or until nothing comes for leave.
func (s *shell) request(leave time.Duration, method, url, body string, header http.Header) string {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(s, err)
	r.Header = header
	resp, err := s.client.Do(r)
	require.NoError(s, err)
	defer resp.Body.Close()
	return s.read(resp.Body, leave, cancel)
}

// read returns what comes until the end, or until nothing comes for leave. Then it calls cancel.
func (s *shell) read(body io.Reader, leave time.Duration, cancel func()) string {
	s.Helper()
	leaving := time.AfterFunc(leave, cancel)
	defer leaving.Stop()
	var text strings.Builder
	var err error
	for piece := make([]byte, 4<<10); err == nil; leaving.Reset(leave) {
		var n int
		n, err = body.Read(piece)
		text.Write(piece[:n])
	}
	if !errors.Is(err, context.Canceled) {
		require.ErrorIs(s, err, io.EOF)
	}
	return text.String()
}

// follow begins a curl -N, which lasts to the end of the document. It returns a mark in place
// of the output.
func (s *shell) follow(url string) string {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	s.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.Replace(url, "localhost:8080", s.PublicAddr(), 1), nil)
	require.NoError(s, err)
	resp, err := s.client.Do(r)
	require.NoError(s, err)
	s.Cleanup(func() { resp.Body.Close() })
	s.followed = append(s.followed, func() string { return s.read(resp.Body, time.Second, cancel) })
	return s.markOf(len(s.followed) - 1)
}

func (s *shell) markOf(followed int) string { return fmt.Sprintf("\x00%d\n", followed) }

// withFollowed puts what each curl -N printed in the place of its mark.
func (s *shell) withFollowed(text string) string {
	s.Helper()
	for i, printed := range s.followed {
		text = strings.Replace(text, s.markOf(i), s.alike(printed()), 1)
	}
	return text
}
