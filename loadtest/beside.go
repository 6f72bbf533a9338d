package loadtest

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// What the tests beside the scenarios, and the commands, need of this package.

// ProcessCPU returns the CPU time of a process and its descendants, and whether it
// is known here. Those of their threads that have ended are left out.
func ProcessCPU(pid int) (time.Duration, bool) { return processesCPU(pid) }

// OwnCPU returns the CPU time of this process, and 0 where that is not known.
func OwnCPU() time.Duration { return ownCPU() }

// CheckOpenFiles returns an error unless this process, and a child that it starts,
// may have so many connections.
func CheckOpenFiles(connections int) error { return checkOpenFiles(connections) }

// WithScheme returns the URL of a host:port, perhaps with a path: it means http. WithScheme
// returns every other text as it is.
func WithScheme(address string) string {
	if u, err := url.Parse("http://" + address); err == nil && u.Port() != "" && !strings.Contains(address, "://") {
		return u.String()
	}
	return address
}

// CheckTarget returns what is wrong with a server's base URL, as --target.
func CheckTarget(target string) error {
	_, err := parseTarget(target)
	return err
}

// Resolve returns the address behind a base URL, and what to call it in requests.
func Resolve(ctx context.Context, target string) (*net.TCPAddr, string, error) {
	return resolve(ctx, target)
}

// Metrics are a daemon's, by name with labels as they are written.
type Metrics map[string]float64

// Scrape reads the metrics of the daemon whose admin listener has that base URL.
func Scrape(ctx context.Context, admin string) (Metrics, error) {
	client := &http.Client{Timeout: sampleTimeout, Transport: &http.Transport{DisableKeepAlives: true}} // no proxy
	lines, err := scrapeMetrics(ctx, client, admin+"/metrics")
	if err != nil {
		return nil, err
	}
	m := Metrics{}
	for key, text := range lines {
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			m[key] = value
		}
	}
	return m, nil
}
