package loadtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// exposition holds the lines of a Prometheus text exposition: metric, with its
// labels as written, to value.
type exposition map[string]string

// maxExposition bounds what a metrics listener may answer.
const maxExposition = 16 << 20

func scrapeMetrics(ctx context.Context, client *http.Client, url string) (m exposition, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/plain; version=0.0.4")
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", url, answer.Status)
	}
	return readExposition(io.LimitReader(answer.Body, maxExposition))
}

// readExposition keeps lines of the form "name value" and "name{labels} value".
func readExposition(r io.Reader) (exposition, error) {
	m := exposition{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		end := strings.LastIndexByte(line, '}') + 1
		space := strings.IndexByte(line[end:], ' ')
		if strings.HasPrefix(line, "#") || space < 0 {
			continue
		}
		value, _, _ := strings.Cut(line[end+space+1:], " ") // a time stamp may follow
		m[line[:end+space]] = value
	}
	return m, lines.Err()
}

// value returns a metric's value; labels are as they are written, or empty.
func (m exposition) value(name, labels string) (float64, bool) {
	if labels != "" {
		name += "{" + labels + "}"
	}
	v, err := strconv.ParseFloat(m[name], 64)
	return v, err == nil
}

// integer is value, 0 if there is none.
func (m exposition) integer(name, labels string) int64 {
	v, _ := m.value(name, labels)
	return int64(v)
}

// labels returns those of a metric that stands for its labels, such as a build's.
func (m exposition) labels(name string) map[string]string {
	for key := range m {
		list, ok := strings.CutPrefix(key, name+"{")
		if !ok {
			continue
		}
		return splitLabels(strings.TrimSuffix(list, "}"))
	}
	return nil
}

func splitLabels(list string) map[string]string {
	labels := map[string]string{}
	for list != "" {
		name, rest, ok := strings.Cut(list, "=")
		quoted, err := strconv.QuotedPrefix(rest)
		if !ok || err != nil {
			break
		}
		labels[name], _ = strconv.Unquote(quoted)
		list = strings.TrimPrefix(rest[len(quoted):], ",")
	}
	return labels
}
