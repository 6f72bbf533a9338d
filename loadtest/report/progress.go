package report

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// NewProgress returns what shows a test on f while it runs: a bar that is redrawn
// if f is a terminal, else a plain line every few seconds and for each phase.
// Finish must be called before anything else is written to f. Errors of f are
// ignored: a test goes on though nobody watches.
func NewProgress(f *os.File) *Progress {
	return &Progress{w: f, terminal: isTerminal(f)}
}

// A Progress is a loadtest.Progress. Its methods must not be called concurrently.
type Progress struct {
	w        io.Writer
	terminal bool

	phase string        // last shown
	shown time.Duration // Elapsed of the last line
	drawn int           // columns of the bar that stands there
}

// Quiet is a loadtest.Progress that shows notices alone.
func Quiet(w io.Writer) *Progress { return &Progress{w: w, shown: never} }

const (
	never    = time.Duration(1<<63 - 1)
	every    = 5 * time.Second // plain lines
	barWidth = 30
)

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// Notice shows text on a line of its own.
func (p *Progress) Notice(text string) {
	p.erase()
	_, _ = fmt.Fprintln(p.w, text)
}

// Update shows where the test is.
func (p *Progress) Update(s loadtest.Status) {
	switch {
	case p.shown == never:
	case p.terminal:
		p.redraw(bar(s) + text(s))
	case s.Phase != p.phase || s.Elapsed-p.shown >= every:
		p.phase, p.shown = s.Phase, s.Elapsed
		_, _ = fmt.Fprintln(p.w, text(s))
	}
}

// Finish removes the bar.
func (p *Progress) Finish() { p.erase() }

func (p *Progress) redraw(line string) {
	columns := len([]rune(line))
	_, _ = fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(p.drawn-columns, 0)))
	p.drawn = columns
}

func (p *Progress) erase() {
	if p.drawn > 0 {
		_, _ = fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.drawn))
		p.drawn = 0
	}
}

func bar(s loadtest.Status) string {
	full := 0
	if s.Total > 0 {
		full = min(barWidth*s.Done/s.Total, barWidth)
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "] "
}

func text(s loadtest.Status) string {
	line := fmt.Sprintf("%-10s %d/%d %s, %d deliveries, %.0f s",
		s.Phase, s.Done, s.Total, s.Unit, s.Deliveries, s.Elapsed.Seconds())
	if s.Failures > 0 {
		line += fmt.Sprintf(", %d errors", s.Failures)
	}
	return line
}
