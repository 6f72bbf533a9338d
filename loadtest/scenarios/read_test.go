package scenarios

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEveryPresetCanBeRead(t *testing.T) {
	require.Equal(t, []string{"example", "laharsub", "silverlight3"}, Names())
	for _, name := range Names() {
		s, err := Preset(name)
		require.NoError(t, err)
		require.Equal(t, name, s.Name)
		for _, r := range s.Runs {
			require.NotRegexp(t, `^run-\d+$`, r.Name, "runs of presets have names")
		}
	}
	_, err := Preset("silverlight5")
	require.ErrorContains(t, err, `"silverlight5": use example, laharsub, silverlight3`)
}

// The articles' experiments: T, N, D and what they had.
func TestSilverlightsRowsAreTheArticles(t *testing.T) {
	s, err := Preset("silverlight3")
	require.NoError(t, err)
	var rows [][6]float64
	for _, r := range s.Runs {
		if c, ok := r.test.(*collabTest); ok {
			require.Equal(t, 100, c.cfg.Rounds)
			rows = append(rows, [6]float64{
				float64(c.cfg.Topics), float64(c.cfg.ClientsPerTopic), c.cfg.Delay.Seconds(),
				*r.Theirs.MeanMS, *r.Theirs.MedianMS, *r.Theirs.StdevMS,
			})
		}
	}
	require.Equal(t, [][6]float64{
		{100, 5, 1, 91, 63, 122}, {500, 2, 15, 4, 0, 12}, {500, 3, 15, 108, 94, 73}, {800, 3, 15, 2743, 1328, 3195},
		{1000, 2, 5, 496, 498, 288}, {1000, 2, 15, 6, 0, 17}, {2000, 2, 15, 25, 0, 99},
	}, rows)
	search := s.Runs[len(rows)].test.(*searchTest).cfg
	require.Equal(t, []time.Duration{10 * time.Second}, search.Periods)
	require.Equal(t, 100, search.Broadcast.Bursts)
	require.EqualValues(t, 5000, *s.Runs[len(rows)].Theirs.Clients)
}

func TestLaharsubsSeriesAreTheArticles(t *testing.T) {
	s, err := Preset("laharsub")
	require.NoError(t, err)
	topics := map[string][]int{}
	courses := 0
	for _, r := range s.Runs {
		c := r.test.(*steadyTest).cfg
		require.Equal(t, 10*time.Second, c.Warmup)
		require.Equal(t, 30*time.Second, c.Duration)
		topics[r.Series] = append(topics[r.Series], c.Topics)
		if r.Course {
			courses++
		}
	}
	require.Equal(t, map[string][]int{
		"2 a topic, P 1 s":  {50, 100, 200, 400, 800},
		"2 a topic, P 5 s":  {100, 200, 500, 1000, 2000},
		"5 a topic, P 15 s": {100, 200, 500, 1000},
	}, topics)
	require.Equal(t, 2, courses)
	require.Contains(t, s.Theirs, "18 % of 100 Mbit/s")
}

func TestAFileBeforeAPresetOfThatName(t *testing.T) {
	t.Chdir(t.TempDir())
	s, err := Load("example")
	require.NoError(t, err)
	require.Equal(t, "An example", s.Title)
	require.NoError(t, os.WriteFile("example", []byte("title: Mine\nruns:\n  - kind: collab\n  - kind: steady\n"), 0o600))
	s, err = Load("example")
	require.NoError(t, err)
	require.Equal(t, "Mine", s.Title)
	require.Equal(t, []string{"run-1", "run-2"}, []string{s.Runs[0].Name, s.Runs[1].Name})
	_, err = Load("examples")
	require.ErrorContains(t, err, "neither a file nor one of the presets example, ")
	_, err = Load(filepath.Join("example", "x"))
	require.Error(t, err)
}

func TestWhatAFileSaysIsWhatRuns(t *testing.T) {
	s, err := Parse("f", []byte(`
title: Mine
runs:
  - {kind: broadcast, name: b, clients: 10, period: 250ms, stateless: true, max-loss: 3, max-p99: 20ms, mode: stream, theirs: in words}
  - {kind: broadcast-search, name: s, period: [100ms, 1s]}
  - {kind: broadcast-search, name: t, period: 2s, dialect: mercure}
`))
	require.NoError(t, err)
	b := s.Runs[0].test.(*broadcastTest).cfg
	require.Equal(t, 250*time.Millisecond, b.Period)
	require.Equal(t, 20*time.Millisecond, b.MaxP99)
	require.EqualValues(t, 3, b.MaxLoss)
	require.True(t, b.Stateless)
	require.Empty(t, b.Target)
	require.Empty(t, b.ServerCommand, "who runs it says which")
	require.Equal(t, Theirs{Words: "in words"}, s.Runs[0].Theirs)
	require.Equal(t, []time.Duration{100 * time.Millisecond, time.Second}, s.Runs[1].test.(*searchTest).cfg.Periods)
	require.Equal(t, []time.Duration{2 * time.Second}, s.Runs[2].test.(*searchTest).cfg.Periods)
}

// Every fault of a file is told, each with its line, its key and what may be there.
func TestFaultsAreToldAtOnce(t *testing.T) {
	_, err := Parse("mine.yaml", []byte(`title: 5
colour: red
runs:
  - kind: collab
    topics: many
    topics: 5
    delay: 3
    stateless: yes please
    period: 1s
    target: http://127.0.0.1:1
  - kind: broadcast
    clients: 10
    topics: 3
    mode: fast
    publishers: 0
  - kind: chaos
  - name: what
  - kind: steady
    name: Not A Name
    theirs: {mean: -1, mode: 2, clients: x}
    course: 1
    series: []
    warmup: {a: b}
    mode: 3
  - 7
  - kind: broadcast-search
    period: [1s, 2]
`))
	require.Error(t, err)
	want := []string{
		`mine.yaml:1: title: is "5": want text`,
		`mine.yaml:2: colour: unknown key: want title, source, about, theirs or runs`,
		`mine.yaml:6: topics: is set twice, first in line 5`,
		`mine.yaml:5: topics: is "many": want a whole number`,
		`mine.yaml:7: delay: is "3": want a duration, such as 250ms, 15s or 2m`,
		`mine.yaml:8: stateless: is "yes please": want true or false`,
		`mine.yaml:9: period: unknown key in a run of kind collab: want name, series, course, theirs, clients-per-topic, connecting, `,
		`mine.yaml:10: target: is not for a file: give --target on the command line`,
		`mine.yaml:14: mode: "fast": use single, batch, multiple or stream`,
		`mine.yaml:15: publishers: must be at least 1; got 0`,
		`mine.yaml:13: topics: 10 clients cannot be spread evenly over 3 topics`,
		`mine.yaml:16: kind: is "chaos": want broadcast, broadcast-search, collab or steady`,
		`mine.yaml:17: kind: is missing: want broadcast, broadcast-search, collab or steady`,
		`mine.yaml:19: name: is "Not A Name": want lower-case letters`,
		`mine.yaml:20: mean: is "-1": want a number that is not negative`,
		`mine.yaml:20: theirs.mode: unknown key: want mean, median, stdev (in ms), clients or words`,
		`mine.yaml:20: clients: is "x": want a number`,
		`mine.yaml:21: course: is "1": want true or false`,
		`mine.yaml:22: series: is a list: want text`,
		`mine.yaml:23: warmup: is a mapping: want a duration`,
		`mine.yaml:24: mode: is "3": want text`,
		`mine.yaml:25: a run: is "7": want keys and values`,
		`mine.yaml:27: period: is a list: want durations, such as [200ms, 1s]`,
	}
	got := strings.Split(err.Error(), "\n")
	require.Len(t, got, len(want), err.Error())
	for i := range want {
		require.Contains(t, got[i], want[i])
	}
}

func TestFilesThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "f: the file: is empty",
		"# nothing\n":                       "f: the file: is empty",
		"just words":                        "f:1: the file: is \"just words\"",
		"title: [":                          "f:1: not YAML",
		"title: x":                          "f:1: runs: is missing",
		"title: x\nruns: []":                "f:2: runs: is a list: want a list of at least one run",
		"title: x\nruns: 3":                 "f:2: runs: is \"3\"",
		"runs:\n  - kind: collab":           "title: is missing",
		"title: ''\nruns: [{kind: collab}]": "f:1: title: is empty",
		"title: x\nruns: [{kind: collab}]\n---\ntitle: y":                           "f:4: the file: has a second document",
		"title: x\nruns:\n  - {kind: collab, name: a}\n  - {kind: steady, name: a}": `f:4: name: is "a", which is also the name of the run at f:3`,
	} {
		_, err := Parse("f", []byte(text))
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		text, err := Text(name)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte("title: &a x\nruns:\n  - *a\n  - !!map {kind: collab, ? x : y}\n  - {kind: [collab], theirs: ~}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse("f", text)
		if err == nil && len(s.Runs) == 0 {
			t.Fatal("a suite without runs")
		}
	})
}
