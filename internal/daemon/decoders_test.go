package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
)

// A program decompresses answers with code that this project did not write.
type program struct {
	names  []string // the first that is installed is used
	debian string
}

var (
	curl     = program{[]string{"curl"}, "curl"}
	node     = program{[]string{"node", "nodejs"}, "nodejs"}
	chromium = program{[]string{"chromium-headless-shell", "chromium", "google-chrome"}, "chromium-headless-shell"}
)

// find returns the program's path. If the program is not installed, find skips the test,
// or fails it in CI.
func (p program) find(t *testing.T) string {
	t.Helper()
	for _, name := range p.names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed, and CI must have it: apt-get install %s", p.names[0], p.debian)
	}
	t.Skipf("%s is not installed: apt-get install %s", p.names[0], p.debian)
	return ""
}

// aMinute is a generous timeout for programs and connections.
const aMinute = time.Minute

// run runs the program and returns its standard output.
func (p program) run(t *testing.T, arguments ...string) string {
	t.Helper()
	path := p.find(t)
	ctx, cancel := context.WithTimeout(t.Context(), aMinute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, arguments...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, "%s: %s", path, &said)
	return string(out)
}

// packing is a daemon and the targets that clients fetch from it. Its topic t has long
// messages among short ones, which compression cannot shrink.
type packing struct {
	*running
	targets []string
}

func startPacking(t *testing.T, lane string) *packing {
	t.Helper()
	d := &packing{running: startLane(t, lane, func(c *config.Config) { c.Origins = []string{"*"} })}
	words := strings.Fields("grün price stock volume market open close high low ‘trade’ order limit 😀 stop")
	rng := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string {
		var b strings.Builder
		for b.Len() < n {
			b.WriteString(words[rng.IntN(len(words))] + " ")
		}
		return b.String()
	}
	for _, size := range []int{2000, 10, 20_000, 1, 1, 5000, 60_000, 1100} {
		body, err := json.Marshal(text(size))
		require.NoError(t, err)
		d.post("/v1/topics/t/messages", string(body))
	}
	session := d.open(`"t@oldest"`).Session
	d.targets = []string{
		"/v1/poll?topic=t@oldest",                       // hello and eight frames
		"/v1/poll?topic=t@oldest&mode=single",           // hello and one
		"/v1/sessions/" + session + "/poll?ack=0",       // eight frames
		"/v1/topics/t/messages?limit=2",                 // two
		"/v1/sessions/" + session + "/poll?ack=0&_=two", // again, on the lane
	}
	return d
}

func (d *packing) url(target string) string { return "http://" + d.PublicAddr() + target }

// plain returns the uncompressed answer.
func (d *packing) plain(target string) string {
	d.Helper()
	request, err := http.NewRequest(http.MethodGet, d.url(target), nil)
	require.NoError(d, err)
	request.Header.Set("Accept-Encoding", "identity")
	resp, err := d.client.Do(request)
	require.NoError(d, err)
	defer resp.Body.Close()
	require.Empty(d, resp.Header.Get("Content-Encoding"))
	body, err := io.ReadAll(resp.Body)
	require.NoError(d, err)
	return string(body)
}

// packed returns how many bytes were compressed, before and after compression.
func (d *packing) packed() (before, after int) {
	d.Helper()
	read := func(stage string) int {
		n, _ := d.metricIfAny(`pubsubd_compressed_bytes_total{stage="` + stage + `"}`)
		return int(n)
	}
	return read("before"), read("after")
}

// wantDecoded has a client fetch every target. It compares each decoded answer with the
// uncompressed one.
func wantDecoded(t *testing.T, fetch func(d *packing) []string) {
	t.Helper()
	for _, lane := range []string{"handoff", "off"} {
		t.Run(lane, func(t *testing.T) {
			t.Parallel()
			d := startPacking(t, lane)
			got := fetch(d)
			before, after := d.packed()
			require.Len(t, got, len(d.targets))
			sent := 0
			for i, target := range d.targets {
				want := d.plain(target)
				require.Equal(t, want, got[i], target)
				sent += len(want)
			}
			require.Equal(t, sent, before, "all of it was sent compressed")
			require.Less(t, after, before/2)
		})
	}
}

func TestGoDecodesCompressedAnswers(t *testing.T) {
	wantDecoded(t, func(d *packing) (answers []string) {
		for _, target := range d.targets {
			status, body := d.get(d.url(target)) // net/http requests gzip by default
			require.Equal(t, http.StatusOK, status)
			answers = append(answers, body)
		}
		return answers
	})
}

func TestCurlDecodesCompressedAnswers(t *testing.T) {
	wantDecoded(t, func(d *packing) (answers []string) {
		for _, target := range d.targets {
			answers = append(answers, curl.run(d.T, "-sS", "--fail", "--compressed", d.url(target)))
		}
		return answers
	})
}

// throughNode runs a Node script with the URLs as its arguments. The script prints the
// answers.
func throughNode(d *packing, script string) (answers []string) {
	d.Helper()
	arguments := []string{"--eval", script, "--"}
	for _, target := range d.targets {
		arguments = append(arguments, d.url(target))
	}
	require.NoError(d, json.Unmarshal([]byte(node.run(d.T, arguments...)), &answers))
	return answers
}

func TestNodesFetchDecodesCompressedAnswers(t *testing.T) {
	wantDecoded(t, func(d *packing) []string {
		return throughNode(d, `
(async () => {
  const answers = [];
  for (const url of process.argv.slice(1)) {
    const answer = await fetch(url);
    if (answer.headers.get("content-encoding") !== "gzip") throw new Error(url + " is not compressed");
    answers.push(await answer.text());
  }
  process.stdout.write(JSON.stringify(answers));
})().catch((error) => { console.error(error); process.exit(1); });`)
	})
}

// Node's zlib decodes each answer at once, and a few bytes at a time. At once, it rejects
// trailing bytes that are not a gzip member.
func TestNodesZlibDecodesCompressedAnswers(t *testing.T) {
	wantDecoded(t, func(d *packing) []string {
		return throughNode(d, `
const http = require("node:http"), zlib = require("node:zlib"), agent = new http.Agent({ keepAlive: true });
const packed = (url) => new Promise((resolve, reject) => {
  http.get(url, { agent, headers: { "Accept-Encoding": "gzip" } }, (answer) => {
    const parts = [];
    answer.on("data", (part) => parts.push(part)).on("error", reject).on("end", () => resolve(Buffer.concat(parts)));
  }).on("error", reject);
});
const inParts = (bytes) => new Promise((resolve, reject) => {
  const gunzip = zlib.createGunzip(), parts = [];
  gunzip.on("data", (part) => parts.push(part)).on("error", reject).on("end", () => resolve(Buffer.concat(parts)));
  for (let i = 0; i < bytes.length; i += 5) gunzip.write(bytes.subarray(i, i + 5));
  gunzip.end();
});
(async () => {
  const answers = [];
  for (const url of process.argv.slice(1)) {
    const bytes = await packed(url), text = zlib.gunzipSync(bytes);
    if (!text.equals(await inParts(bytes))) throw new Error(url + " differs in parts");
    answers.push(text.toString());
  }
  agent.destroy();
  process.stdout.write(JSON.stringify(answers));
})().catch((error) => { console.error(error); process.exit(1); });`)
	})
}

// A page of another origin fetches the targets in a browser. It reports the answers to
// its own server.
func TestChromiumDecodesCompressedAnswers(t *testing.T) {
	wantDecoded(t, func(d *packing) []string { return throughChromium(d) })
}

const fetchingPage = `<!doctype html><script type="module">
const report = (what) => fetch("/report", { method: "POST", body: JSON.stringify(what) });
try {
  const answers = [];
  for (const url of %s) answers.push(await (await fetch(url)).text());
  await report({ answers });
} catch (error) {
  await report({ error: String(error) });
}
</script>`

func throughChromium(d *packing) []string {
	d.Helper()
	var urls []string
	for _, target := range d.targets {
		urls = append(urls, d.url(target))
	}
	list, err := json.Marshal(urls)
	require.NoError(d, err)
	type told struct {
		Answers []string `json:"answers"`
		Error   string   `json:"error"`
	}
	reports := make(chan told, 1)
	page := http.NewServeMux()
	page.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, fetchingPage, list)
	})
	page.HandleFunc("POST /report", func(_ http.ResponseWriter, r *http.Request) {
		var report told
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
			report.Error = err.Error()
		}
		select {
		case reports <- report:
		default:
		}
	})
	server := httptest.NewServer(page)
	defer server.Close()
	defer browse(d.T, server.URL)()
	select {
	case report := <-reports:
		require.Empty(d, report.Error)
		return report.Answers
	case <-time.After(aMinute):
		require.Fail(d, "the page has reported nothing")
	}
	return nil
}

// browse opens a page in a browser until closeIt is called.
func browse(t *testing.T, url string) (closeIt func()) {
	t.Helper()
	arguments := []string{
		"--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--user-data-dir=" + t.TempDir(), url,
	}
	if os.Geteuid() == 0 {
		arguments = append([]string{"--no-sandbox"}, arguments...) // it refuses to run as root with a sandbox
	}
	return startGroup(t, chromium.find(t), arguments...)
}
